-- Records that an extraction was given up. ARGV: vuid, akey, attempt, record, profile; for a job: job, claimed, and error or
-- canceled -> 1: recorded; 0: the version is dead
-- A job is not canceled while its attempt publishes, because the artifact may be in force at any moment.
if tell_failure(a) == 0 then return 0 end
local pending = a.job and pending_field(a.vuid, a.profile, a.claimed)
if a.canceled then
  local begun = redis.call('HGET', speaker, 'g:' .. a.vuid .. ':' .. a.akey)
  local state, attempt = unpack(redis.call('HMGET', job_key(a.job), 'state', 'attempt'))
  local own = string.format('-%s-%03d', string.match(a.job, '[^_]+$'), tonumber(attempt or '0'))
  local publishing = state == 'processing' and begun and (begun == '*' or string.sub(begun, -#own) == own)
  if not publishing then land(pending, a.job, 'canceled', {}) end
elseif a.job then
  land(pending, a.job, 'failed', {error = a.error})
end
return 1
