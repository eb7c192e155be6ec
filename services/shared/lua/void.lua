-- An artifact's bytes were lost: it counts no more, and its build is not used again. ARGV: vuid, base, build
-- -> 1 void, 0 the version is dead. Idempotent, in any order with the others.
if not live(a.vuid) then return 0 end
local key = a.vuid .. ':' .. a.base .. '-' .. a.build
if redis.call('HSETNX', speaker, 'w:' .. key, 1) == 1 then
  count_bytes(-bytes_brought(redis.call('HGET', speaker, 'r:' .. key)))
  note(a.vuid, 'w:' .. a.base .. '-' .. a.build)
  redis.call('HDEL', speaker, 'r:' .. key, 'x:' .. key, 'g:' .. key)
  local best = 'b:' .. a.vuid .. ':' .. a.base
  if a.build > mark(best) then redis.call('HSET', speaker, best, a.build) end
  event('artifact.void', {vuid = a.vuid})
  if not a.quiet then look_again(1) end
end
return 1
