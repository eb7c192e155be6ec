-- Reserves a voice that is about to be registered, so that simultaneous registrations cannot exceed the limit together.
-- KEYS: stamp, reservations of the namespace, its counts
-- ARGV: stamp, speaker, ms after which a reservation has ended, names of the counts...
-- -> the reserved voices before this one, and the counts
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now - ARGV[3] * 1000))
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[2])
return {redis.call('ZRANK', KEYS[2], ARGV[2]), unpack(redis.call('HMGET', KEYS[3], unpack(ARGV, 4)))}
