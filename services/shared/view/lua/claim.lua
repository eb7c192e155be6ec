-- Claims an extraction for a new job and writes the job's record. A job whose claim has run out is superseded.
-- KEYS: stamp, open jobs of the speaker, the prefix of the keys of job records, jobs of the namespace, events
-- ARGV: stamp, version, profile and fingerprint (joined by '|'), job, ms until the claim expires, ms until the record expires, the speaker,
--       ':mends' if the artifact's bytes are lost or else '', fields of the record...
-- -> the id of the job that has the claim: this one, or an earlier one to join.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local seconds = string.format('%.17g', now / 1000)
local claim = redis.call('HGET', KEYS[2], ARGV[2]) or ''
local job, deadline = string.match(claim, '^([^:]*):[^:]*:(%d+)')
if job and (job == ARGV[3] or tonumber(deadline) > now) then
  if ARGV[7] ~= '' and not string.find(claim, ':mends') then redis.call('HSET', KEYS[2], ARGV[2], claim .. ARGV[7]) end
  return job
end
if job then
  local state = redis.call('HGET', KEYS[3] .. job, 'state')
  if state == 'queued' or state == 'processing' then
    redis.call('HSET', KEYS[3] .. job, 'replaced', 'true')
    move_job(KEYS[4], KEYS[3] .. job, job, 'superseded', true, seconds)
  end
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ':queued:' .. string.format('%.0f', now + tonumber(ARGV[4])) .. ARGV[7])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
local record = KEYS[3] .. ARGV[3]
redis.call('HSET', record, 'state', 'queued', 'created_at', seconds, unpack(ARGV, 8))
redis.call('PEXPIRE', record, ARGV[5])
redis.call('ZADD', KEYS[4], seconds, ARGV[3])
move_job(KEYS[4], record, ARGV[3], 'queued', false, seconds)
-- The event has all fields, because Redis may lose the record.
local fields = {}
for place = 8, #ARGV, 2 do fields[ARGV[place]] = ARGV[place + 1] end
redis.call('XADD', KEYS[5], 'MAXLEN', '~', 50000, '*', 'speaker', ARGV[6], 'what', 'job', 'at', seconds, 'job', ARGV[3],
  'state', 'queued', 'claimed', cjson.encode(fields))
return ARGV[3]
