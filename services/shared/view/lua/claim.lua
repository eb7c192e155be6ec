-- Claims an extraction for a new job and writes the job's record. A job whose claim has run out is superseded.
-- KEYS: stamp, open jobs of the speaker, what stands before the id in the key of a job's record, jobs of the namespace, events
-- ARGV: stamp, what is extracted, job, held for so many ms, the record is kept for so many ms, the speaker, fields of the record...
-- -> the id of the job that has the claim: this one, or an earlier one to join.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local seconds = string.format('%.17g', now / 1000)
local job, deadline = string.match(redis.call('HGET', KEYS[2], ARGV[2]) or '', '^([^:]*):[^:]*:(%d+)$')
if job and (job == ARGV[3] or tonumber(deadline) > now) then return job end
if job and redis.call('EXISTS', KEYS[3] .. job) == 1 then
  redis.call('HSET', KEYS[3] .. job, 'state', 'superseded', 'finished_at', seconds)
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ':queued:' .. string.format('%.0f', now + tonumber(ARGV[4])))
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('HSET', KEYS[3] .. ARGV[3], 'state', 'queued', 'created_at', seconds, unpack(ARGV, 7))
redis.call('PEXPIRE', KEYS[3] .. ARGV[3], ARGV[5])
redis.call('ZADD', KEYS[4], seconds, ARGV[3])
redis.call('XADD', KEYS[5], 'MAXLEN', '~', 50000, '*', 'speaker', ARGV[6], 'what', 'job', 'at', seconds, 'job', ARGV[3], 'state', 'queued')
return ARGV[3]
