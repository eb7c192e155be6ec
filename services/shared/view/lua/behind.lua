-- Counts the leases of processes that have not applied an event yet.
-- KEYS: stamp, leases, the last event that took something away
-- ARGV: stamp, an event or '' for the last one that took something away, 1 to end the leases that are behind it or else 0
-- -> the event, and how many leases were behind it
local event = ARGV[2] ~= '' and ARGV[2] or redis.call('GET', KEYS[3]) or '0-0'
local all, behind = redis.call('HGETALL', KEYS[2]), 0
for i = 1, #all, 2 do
  if after(event, all[i + 1]) then
    behind = behind + 1
    if ARGV[3] == '1' then redis.call('HDEL', KEYS[2], all[i]) end
  end
end
return {event, behind}
