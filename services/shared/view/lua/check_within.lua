-- Schedules a check of speakers by housekeeping. A check that is due already stays due, but counts as a new request: a process that
-- is checking the speaker now leaves it on the agenda.
-- KEYS: stamp, agenda. ARGV: stamp, and for each speaker: speaker, ms until the check
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for place = 2, #ARGV, 2 do
  local at = now + tonumber(ARGV[place + 1])
  local due = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[place]))
  if due then at = due <= now and due + 1 or math.min(at, due) end
  redis.call('ZADD', KEYS[2], string.format('%.0f', at), ARGV[place])
end
