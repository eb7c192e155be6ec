-- Takes the next place in this speaker's order. ARGV: kind 'ver'|'als'|'del', now, max_speakers, immutable, alias, expected
-- -> {seq, number, created_at}, or an error: QUOTA, EXISTS, NOTFOUND, MOVED
local is_live = mark('live') > 0
if a.kind == 'ver' then
  if is_live and a.immutable then return redis.error_reply('EXISTS') end
  if not is_live and redis.call('ZCARD', names) >= a.max_speakers then return redis.error_reply('QUOTA') end
elseif not is_live then
  return redis.error_reply('NOTFOUND')
end
if a.kind == 'als' then
  local last = redis.call('HGET', speaker, 'ra:' .. a.alias)
  if not last then last = string.match(redis.call('HGET', speaker, 'a:' .. a.alias) or '0:', '^%d+') end
  if a.expected and tonumber(last) ~= a.expected then return redis.error_reply('MOVED') end
end
local seq = redis.call('HINCRBY', speaker, 'seq', 1)
if a.kind == 'als' then redis.call('HSET', speaker, 'ra:' .. a.alias, seq) end
local number, created_at = mark('num'), mark('at')
if a.kind == 'ver' then
  number = redis.call('HINCRBY', speaker, 'num', 1)
  created_at = math.max(math.floor(a.now), created_at + 1)
  redis.call('HSET', speaker, 'at', string.format('%.0f', created_at))
end
look_again(10)
return {seq, number, created_at}
