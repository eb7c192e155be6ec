-- Gives a process a lease on the event stream, if it has applied every event that took something away.
-- KEYS: stamp, leases, the last event that took something away, events
-- ARGV: stamp, process, the last event that it has applied, the last one that it had applied at its previous request
-- -> granted, behind, or trimmed: see `leases`
local function is_trimmed()
  local info = redis.call('XINFO', 'STREAM', KEYS[4])
  local stream = {}
  for place = 1, #info, 2 do stream[info[place]] = info[place + 1] end
  return stream['entries-added'] > stream['length']
end
local oldest = redis.call('XRANGE', KEYS[4], '-', '+', 'COUNT', 1)[1]
if oldest and after(oldest[1], ARGV[4]) and is_trimmed() then return 'trimmed' end
if after(redis.call('GET', KEYS[3]) or '0-0', ARGV[3]) then return 'behind' end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 'granted'
