-- Has housekeeping look at a speaker soon. A look that is due already stays due, but is another one: who is looking now looks again.
-- KEYS: stamp, agenda. ARGV: stamp, speaker, look in so many ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local at = now + tonumber(ARGV[3])
local due = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[2]))
if due then at = due <= now and due + 1 or math.min(at, due) end
redis.call('ZADD', KEYS[2], string.format('%.0f', at), ARGV[2])
