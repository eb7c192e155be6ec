-- What the facts say beyond single ones: no place is given out twice. ARGV: seq, number, created_at, damaged, unreadable
-- (names of versions and artifacts whose record cannot be read now, separated by spaces). What the index knows already is served
-- all the same.
local unknown = {}
for name in string.gmatch(a.unreadable, '%S+') do
  local known = redis.call('HEXISTS', speaker, 'v:' .. name) + redis.call('HEXISTS', speaker, 'r:' .. name)
  if known == 0 then table.insert(unknown, name) end
end
if #unknown > 0 then
  a.damaged = math.max(a.damaged, a.seq)
  redis.call('HSET', speaker, 'unreadable', table.concat(unknown, ' '))
else
  redis.call('HDEL', speaker, 'unreadable')
end
raise_mark('seq', a.seq); raise_mark('num', a.number); raise_mark('at', a.created_at)
if a.damaged > mark('tomb') then
  redis.call('HSET', speaker, 'damaged', string.format('%.0f', a.damaged))
else
  redis.call('HDEL', speaker, 'damaged')
end
return 1
