-- Decides whether an artifact may be published. ARGV: vuid, akey, token; for an attempt at a job: job, attempt, profile,
-- fingerprint (of the claim); for an uploaded artifact: bytes (its size), max_bytes (limit of the namespace)
-- -> 1: it may; 0: another attempt took over, or the artifact exists; -2: the version is dead
-- Errors: FULL, DAMAGED, UNREADABLE; UNDECIDED: the facts have to be told first.
if not live(a.vuid) then return expect_readable() or -2 end
if redis.call('HEXISTS', speaker, 'r:' .. a.vuid .. ':' .. a.akey) == 1 or void(a.vuid, a.akey) then return 0 end
if a.job then
  local pending = redis.call('HGET', speaker, pending_field(a.vuid, a.profile, a.fingerprint))
  if not pending or string.match(pending, '^[^:]+') ~= a.job then return 0 end
  if tonumber(redis.call('HGET', job_key(a.job), 'attempt') or '0') ~= a.attempt then return 0 end
end
-- The same artifact may have been published and served just before the index was lost. Another one that lands in the same
-- second would take its place.
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
