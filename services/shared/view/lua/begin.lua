-- Begins a generation, if the stamp is still the one that the caller saw. Runs without the prelude.
-- KEYS: stamp, the last generation that was complete, the key that marks the generation that the caller saw as complete
-- ARGV: the stamp that the caller saw, or ''; the new stamp; the generation that the caller saw  -> 1, or 0 if another process was first.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if redis.call('EXISTS', KEYS[3]) == 1 then redis.call('SET', KEYS[2], ARGV[3]) end
redis.call('SET', KEYS[1], ARGV[2])
return 1
