-- ARGV: seq, alias, automatic, uid, vuid -> 1 it is the last move of its kind, 0 a later one is, or a tombstone covers it
raise_mark('seq', a.seq)
if a.seq <= mark('tomb') then return 0 end
local field = (a.automatic and 'p:' or 'a:') .. a.alias
local current = redis.call('HGET', speaker, field)
if current then
  local seq, uid = string.match(current, '^(%d+):([^:]+):')
  if tonumber(seq) > a.seq or (tonumber(seq) == a.seq and uid >= a.uid) then return 0 end
end
redis.call('HSET', speaker, field, string.format('%.0f', a.seq) .. ':' .. a.uid .. ':' .. a.vuid)
event('alias.updated', {alias = a.alias, vuid = a.vuid})
return 1
