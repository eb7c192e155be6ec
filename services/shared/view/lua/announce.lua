-- Announces a write to a speaker.
-- KEYS: stamp, announcements of the speaker. ARGV: stamp, token
local time = redis.call('TIME')
redis.call('HSET', KEYS[2], ARGV[2], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
