-- Says that the view holds every speaker.
-- KEYS: stamp, where it is said. ARGV: stamp
redis.call('SET', KEYS[2], 1)
