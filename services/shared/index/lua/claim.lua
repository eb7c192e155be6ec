-- Claims an extraction: at most one is pending per (version, profile, fingerprint). ARGV: vuid, profile, fingerprint (or ''),
-- base (akey without build), force, max_builds, steal (id of the job whose pending extraction may be taken over), job {id, …}
-- -> {'claimed', job id, build}: the caller enqueues the job; {'pending', job id, build}: the caller joins that job;
--    {'ready'}; {'failed'}; {'dead'}; {'full'}
-- Error: UNDECIDED.
if not live(a.vuid) then return {'dead'} end
-- The next build may belong to an artifact that the index was not told of yet.
if a.force and redis.call('HEXISTS', speaker, 'undecided') == 1 then return redis.error_reply('UNDECIDED') end
local build = tonumber(redis.call('HGET', speaker, 'b:' .. a.vuid .. ':' .. a.base) or '0')
if not a.force then
  for one = build, 1, -1 do -- build 1 is ready, unless its bytes were lost
    if redis.call('HEXISTS', speaker, 'r:' .. a.vuid .. ':' .. a.base .. '-' .. one) == 1 then return {'ready'} end
  end
  if redis.call('HEXISTS', speaker, string.format('x:%s:%s-%d', a.vuid, a.base, build + 1)) == 1 then return {'failed'} end
end
for _, fingerprint in ipairs({a.fingerprint, ''}) do
  local field = pending_field(a.vuid, a.profile, fingerprint)
  local pending = redis.call('HGET', speaker, field)
  if pending then
    local id = string.match(pending, '^[^:]+')
    if id == a.job.id then return {'claimed', id, build + 1} end -- the same call, repeated after a lost reply
    if id ~= a.steal then return {'pending', id, tonumber(redis.call('HGET', job_key(id), 'build') or build + 1)} end
    redis.call('HDEL', speaker, field)
  end
end
if a.max_builds and build >= a.max_builds then return {'full'} end
redis.call('HSET', speaker, pending_field(a.vuid, a.profile, a.fingerprint), a.job.id .. ':queued')
note(a.vuid, 'f:' .. a.profile .. ':' .. a.fingerprint)
-- The time keeps every digit, because it is the job's score in the lists. `tostring` would keep only 14.
a.job.state, a.job.build, a.job.created_at = 'queued', build + 1, string.format('%.17g', a.now)
for name, value in pairs(a.job) do redis.call('HSET', job_key(a.job.id), name, tostring(value)) end
redis.call('ZADD', 'sr:jobs:' .. a.job.ns, a.now, a.job.id)
redis.call('ZADD', 'sr:jobs:' .. a.job.ns .. ':queued', a.now, a.job.id)
redis.call('ZADD', 'sr:jobs:' .. a.job.ns .. ':queued:' .. a.job.profile, a.now, a.job.id)
event('job.updated', {job = a.job.id, state = 'queued', claimed = a.job}) -- with all fields for `SeenJobs`, because Redis may lose the record
look_again(10)
return {'claimed', a.job.id, build + 1}
