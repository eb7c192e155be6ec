-- Records that an extraction was given up. ARGV: vuid, akey, attempt, record, profile, and where there is a job: job,
-- claimed, error, or canceled instead of that -> 1 recorded, 0 dead.
-- A job is not canceled while its attempt publishes: what that has stored may be in force any moment.
if tell_failure(a) == 0 then return 0 end
local flight = a.job and flight_of(a.vuid, a.profile, a.claimed)
if a.canceled then
  local begun = redis.call('HGET', speaker, 'g:' .. a.vuid .. ':' .. a.akey)
  local state, attempt = unpack(redis.call('HMGET', job_key(a.job), 'state', 'attempt'))
  local own = string.format('-%s-%03d', string.match(a.job, '[^_]+$'), tonumber(attempt or '0'))
  local publishing = state == 'processing' and begun and (begun == '*' or string.sub(begun, -#own) == own)
  if not publishing then land(flight, a.job, 'canceled', {}) end
elseif a.job then
  land(flight, a.job, 'failed', {error = a.error})
end
return 1
