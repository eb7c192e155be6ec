-- Removes keys of generations that have ended. The caller chooses the keys, and its own generation must still be in use.
-- KEYS: stamp, keys... ARGV: stamp  -> the number of removed keys
return redis.call('UNLINK', unpack(KEYS, 2))
