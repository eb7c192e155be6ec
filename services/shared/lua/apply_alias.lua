-- ARGV: seq, alias, uid, vuid -> 1 moved, 0 a later move is in force
raise_mark('seq', a.seq)
local current = redis.call('HGET', speaker, 'a:' .. a.alias)
if current then
  local seq, uid = string.match(current, '^(%d+):([^:]+):')
  if tonumber(seq) > a.seq or (tonumber(seq) == a.seq and uid >= a.uid) then return 0 end
end
redis.call('HSET', speaker, 'a:' .. a.alias, string.format('%.0f', a.seq) .. ':' .. a.uid .. ':' .. a.vuid)
event('alias.updated', {alias = a.alias, vuid = a.vuid})
return 1
