-- Says that the view holds every speaker of a listing that has just been applied, and keeps the time of the first and of the last one.
-- KEYS: stamp, where it is said. ARGV: stamp
local time = redis.call('TIME')
redis.call('HSETNX', KEYS[2], 'first', time[1])
redis.call('HSET', KEYS[2], 'last', time[1])
