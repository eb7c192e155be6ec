-- Removes keys of generations that have ended. The caller has chosen them; its own generation must still be the one in use.
-- KEYS: stamp, keys... ARGV: stamp  -> how many there were
return redis.call('UNLINK', unpack(KEYS, 2))
