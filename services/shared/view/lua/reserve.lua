-- Reserves a voice that is about to be registered, so that simultaneous registrations cannot exceed the limit together.
-- KEYS: stamp, reservations of the namespace, its counts, the prefix of the keys of copies
-- ARGV: stamp, speaker, token of the reservation, ms after which a reservation has ended, names of the counts...
-- -> the number of other voices that are reserved and not live, so that the counts lack them, and the counts
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now - ARGV[4] * 1000))
local seen, others = {[ARGV[2]] = true}, 0
for _, reservation in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local speaker = string.match(reservation, '^%S+')
  if not seen[speaker] then
    seen[speaker] = true
    if (redis.call('HGET', KEYS[4] .. speaker, 'key') or '') == '' then others = others + 1 end
  end
end
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[2] .. ' ' .. ARGV[3])
return {others, unpack(redis.call('HMGET', KEYS[3], unpack(ARGV, 5)))}
