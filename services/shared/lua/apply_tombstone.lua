-- ARGV: seq, number, created_at -> number of versions killed. Their jobs are superseded, moves of aliases forgotten.
raise_mark('seq', a.seq); raise_mark('num', a.number); raise_mark('at', a.created_at)
if a.seq <= mark('tomb') then return 0 end
redis.call('HSET', speaker, 'tomb', string.format('%.0f', a.seq))
if mark('damaged') <= a.seq then redis.call('HDEL', speaker, 'damaged', 'unreadable') end
local all, dead, killed = redis.call('HGETALL', speaker), {}, 0
for i = 1, #all, 2 do
  local vuid = string.match(all[i], '^v:(.+)$')
  if vuid and tonumber(string.match(all[i + 1], '^%d+')) <= a.seq then dead[vuid] = true; killed = killed + 1 end
end
for i = 1, #all, 2 do
  if string.match(all[i], '^r?[ap]:') and tonumber(string.match(all[i + 1], '^%d+')) <= a.seq then
    redis.call('HDEL', speaker, all[i])
  end
  local kind, vuid = string.match(all[i], '^([vrbgxwfk]):([^:]+)')
  if string.match(all[i], '^i:') then vuid, kind = all[i + 1], 'i' end
  if kind and dead[vuid] then
    if kind == 'v' then
      count_bytes(-bytes_of(all[i + 1]))
      redis.call('ZREM', order, in_order(tonumber(string.match(all[i + 1], '^%d+')), vuid))
    end
    if kind == 'r' then count_bytes(-bytes_brought(all[i + 1])) end
    redis.call('HDEL', speaker, all[i])
    if kind == 'f' then finish_job(string.match(all[i + 1], '^[^:]+'), 'superseded', {}) end
  end
end
if killed > 0 and redis.call('HINCRBY', speaker, 'live', -killed) <= 0 then
  redis.call('ZREM', names, redis.call('HGET', speaker, 'key'))
end
event('voice.deleted', {versions = killed})
return killed
