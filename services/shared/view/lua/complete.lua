-- Records that every document of a listing has been applied, with the times of the first and of the last such listing.
-- KEYS: stamp, the key of these times. ARGV: stamp
local time = redis.call('TIME')
redis.call('HSETNX', KEYS[2], 'first', time[1])
redis.call('HSET', KEYS[2], 'last', time[1])
