-- Starts an attempt at a job. ARGV: job, vuid, profile, fingerprint (of the claim), worker
-- -> the attempt, from 1; 0: the job is no longer wanted, and its record is closed
local state = redis.call('HGET', job_key(a.job), 'state')
if not state or state == 'succeeded' or state == 'failed' or state == 'canceled' or state == 'superseded' then return 0 end
local field = pending_field(a.vuid, a.profile, a.fingerprint)
local pending = redis.call('HGET', speaker, field)
if not live(a.vuid) or not pending or string.match(pending, '^[^:]+') ~= a.job then
  finish_job(a.job, 'superseded', {})
  return 0
end
redis.call('HSET', speaker, field, a.job .. ':processing')
redis.call('HSETNX', job_key(a.job), 'started_at', tostring(a.now))
local attempt = redis.call('HINCRBY', job_key(a.job), 'attempt', 1)
move_job(a.job, 'processing', {worker = a.worker, stage = 'preparing', done = 0, total = a.stages})
look_again(10)
return attempt
