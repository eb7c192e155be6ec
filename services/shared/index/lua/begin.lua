-- May this attempt publish? ARGV: vuid, akey, token, and of a job's attempt: job, attempt, profile, fingerprint (of the claim);
-- of what somebody brings bytes and max_bytes (of it, of all in the namespace)
-- -> 1 go, 0 another attempt took over or its artifact is there already, -2 the version is dead; error FULL, DAMAGED, UNREADABLE,
-- UNDECIDED (the facts are to be told first)
if not live(a.vuid) then return expect_readable() or -2 end
if redis.call('HEXISTS', speaker, 'r:' .. a.vuid .. ':' .. a.akey) == 1 or void(a.vuid, a.akey) then return 0 end
if a.job then
  local flight = redis.call('HGET', speaker, flight_of(a.vuid, a.profile, a.fingerprint))
  if not flight or string.match(flight, '^[^:]+') ~= a.job then return 0 end
  if tonumber(redis.call('HGET', job_key(a.job), 'attempt') or '0') ~= a.attempt then return 0 end
end
-- This artifact may have been published, and served, just before the index was lost. Another one that lands in the same second
-- would take its place.
if redis.call('HEXISTS', speaker, 'undecided') == 1 then return redis.error_reply('UNDECIDED') end
if a.max_bytes and tonumber(redis.call('GET', names .. ':bytes') or '0') + a.bytes > a.max_bytes then
  return redis.error_reply('FULL')
end
look_again(10)
local begun = 'g:' .. a.vuid .. ':' .. a.akey
if redis.call('HSETNX', speaker, begun, a.token) == 0 and redis.call('HGET', speaker, begun) ~= a.token then
  redis.call('HSET', speaker, begun, '*')
end
return 1
