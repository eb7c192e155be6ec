-- Says that a write to a speaker begins, and has housekeeping look at the speaker soon.
-- KEYS: stamp, agenda, announcements of the speaker. ARGV: stamp, speaker, token, look in so many ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[3], ARGV[3], string.format('%.0f', now))
redis.call('ZADD', KEYS[2], 'LT', string.format('%.0f', now + tonumber(ARGV[4])), ARGV[2])
