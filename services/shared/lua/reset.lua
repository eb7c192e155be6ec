-- Before a rebuild: forgets what facts will tell again. Keeps marks (they only rise) and flights (jobs prove them), unless
-- wholly. ARGV: token, wholly. Refused if the rebuild is over or somebody else's: then nobody would tell it again.
if redis.call('GET', 'sr:rebuild') ~= a.token then return redis.error_reply('LOST') end
local key = redis.call('HGET', speaker, 'key')
if key then redis.call('ZREM', names, key) end
count_bytes(-mark('bytes'))
redis.call('DEL', order)
if a.wholly then return redis.call('DEL', speaker) end
for _, field in ipairs(redis.call('HKEYS', speaker)) do
  if string.match(field, '^[vaprbgxwki]:') or string.match(field, '^r[ap]:') or field == 'live' or field == 'tomb' or field == 'damaged' or field == 'unreadable' then
    redis.call('HDEL', speaker, field)
  end
end
for _, field in ipairs(redis.call('HKEYS', speaker)) do
  local vuid, flight = string.match(field, '^f:([^:]+):(.+)$')
  if vuid then note(vuid, 'f:' .. flight) end
end
look_again(1)
return 1
