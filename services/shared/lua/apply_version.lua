-- ARGV: seq, vuid, number, created_at, key, record -> 1 live, 0 dead. Idempotent, in any order with the others.
raise_mark('seq', a.seq); raise_mark('num', a.number); raise_mark('at', a.created_at)
if a.seq <= mark('tomb') then return 0 end
local value = string.format('%.0f', a.seq) .. ':' .. a.record
if redis.call('HSETNX', speaker, 'v:' .. a.vuid, value) == 1 then
  count_bytes(bytes_of(value))
  redis.call('HINCRBY', speaker, 'live', 1)
  redis.call('ZADD', order, a.number, in_order(a.seq, a.vuid))
  if a.idempotency then redis.call('HSET', speaker, 'i:' .. a.idempotency, a.vuid) end
  redis.call('HSET', speaker, 'key', a.key)
  redis.call('ZADD', names, 0, a.key)
  event('version.created', {vuid = a.vuid, version = a.number})
end
return 1
