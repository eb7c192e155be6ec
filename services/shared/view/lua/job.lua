-- Changes the record of a job that has not ended, and renews its claim or ends it.
-- KEYS: stamp, open jobs of the speaker, record of the job, jobs of the namespace, events
-- ARGV: stamp, version, profile and fingerprint (joined by '|'), job, state ('' leaves it as it is), ms until the claim expires
--       ('' ends it), 1 if an attempt begins or else 0, the speaker, the attempt that must be the latest or '', fields of the
--       record...
-- -> the number of the job's attempts; nothing if the job has ended, its record is gone, or another attempt is the latest.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local seconds = string.format('%.17g', now / 1000)
local claim = redis.call('HGET', KEYS[2], ARGV[2]) or ''
local holder, mends = string.match(claim, '^[^:]*'), string.match(claim, ':mends$') or ''
if ARGV[5] == '' and holder == ARGV[3] then redis.call('HDEL', KEYS[2], ARGV[2]) end
local state = redis.call('HGET', KEYS[3], 'state')
if state ~= 'queued' and state ~= 'processing' then return false end
if ARGV[8] ~= '' and ARGV[8] ~= (redis.call('HGET', KEYS[3], 'attempt') or '0') then return false end
local wanted = ARGV[4] ~= '' and ARGV[4] or state
if #ARGV > 8 then redis.call('HSET', KEYS[3], unpack(ARGV, 9)) end
local attempts = redis.call('HINCRBY', KEYS[3], 'attempt', ARGV[6])
if ARGV[6] == '1' then redis.call('HSET', KEYS[3], 'started_at', seconds) end
if ARGV[5] ~= '' and (holder == '' or holder == ARGV[3]) then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ':' .. wanted .. ':' .. string.format('%.0f', now + tonumber(ARGV[5])) .. mends)
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
if state ~= wanted then move_job(KEYS[4], KEYS[3], ARGV[3], wanted, ARGV[5] == '', seconds) end
if state ~= wanted or #ARGV > 8 then
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', 50000, '*', 'speaker', ARGV[7], 'what', 'job', 'at', seconds,
    'job', ARGV[3], 'state', wanted)
end
return attempts
