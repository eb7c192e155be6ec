-- Records that an extraction was given up. ARGV: vuid, akey, attempt, record, profile, and job, claimed, error where
-- there is a job -> 1 recorded, 0 dead. A ready artifact makes it meaningless, in any order.
if not live(a.vuid) then return 0 end
local field = 'x:' .. a.vuid .. ':' .. a.akey
local current = redis.call('HGET', speaker, field)
if not void(a.vuid, a.akey) and (not current or string.match(current, '^[^:]+') < a.attempt) then
  redis.call('HSET', speaker, field, a.attempt .. ':' .. a.record)
  event('artifact.failed', {vuid = a.vuid, profile = a.profile})
end
if a.job then land(flight_of(a.vuid, a.profile, a.claimed), a.job, 'failed', {error = a.error}) end
return 1
