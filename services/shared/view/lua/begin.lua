-- Begins a generation, if the stamp is still the one that the caller saw. Runs without the prelude.
-- KEYS: stamp. ARGV: the stamp that the caller saw, or ''; the new stamp.  -> 1, or 0 if somebody was first.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
