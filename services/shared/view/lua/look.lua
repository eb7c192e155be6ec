-- Has housekeeping look at speakers soon. A look that is due already stays due, but is another one: who is looking now looks again.
-- KEYS: stamp, agenda. ARGV: stamp, and for each speaker: speaker, look in so many ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for place = 2, #ARGV, 2 do
  local at = now + tonumber(ARGV[place + 1])
  local due = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[place]))
  if due then at = due <= now and due + 1 or math.min(at, due) end
  redis.call('ZADD', KEYS[2], string.format('%.0f', at), ARGV[place])
end
