-- Removes a speaker from the agenda after a check, or schedules the next check. A check that was requested meanwhile stays.
-- KEYS: stamp, agenda. ARGV: stamp, speaker, the time of the check that was due, ms until the next check or ''
local due = redis.call('ZSCORE', KEYS[2], ARGV[2])
if not due or tonumber(due) ~= tonumber(ARGV[3]) then return end
if ARGV[4] == '' then redis.call('ZREM', KEYS[2], ARGV[2]) return end
local time = redis.call('TIME')
local again = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[4])
redis.call('ZADD', KEYS[2], string.format('%.0f', again), ARGV[2])
