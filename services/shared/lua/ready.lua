-- Puts an artifact in force, unless one already is. ARGV: vuid, base, build, winner, record, profile, fingerprint
-- (of the artifact), job and claimed (fingerprint of the claim) where there is one, promotion (an alias move, as in
-- apply_alias) that takes effect in the same moment, alone (token of the only call that may have begun to publish)
-- -> the winner in force, or 'dead' (also where the artifact's bytes were lost since); error RIVALS
if not live(a.vuid) then return 'dead' end
if void(a.vuid, a.base .. '-' .. a.build) then
  if a.job then land(flight_of(a.vuid, a.profile, a.claimed), a.job, 'superseded', {}) end
  return 'dead'
end
local field = 'r:' .. a.vuid .. ':' .. a.base .. '-' .. a.build
local current = redis.call('HGET', speaker, field)
if not current then
  local begun = 'g:' .. a.vuid .. ':' .. a.base .. '-' .. a.build
  if a.alone and redis.call('HGET', speaker, begun) ~= a.alone then return redis.error_reply('RIVALS') end
  redis.call('HDEL', speaker, begun)
  current = a.winner .. ':' .. a.record
  redis.call('HSET', speaker, field, current)
  count_bytes(bytes_brought(current))
  note(a.vuid, 'r:' .. a.base .. '-' .. a.build)
  local best = 'b:' .. a.vuid .. ':' .. a.base
  if a.build > mark(best) then redis.call('HSET', speaker, best, a.build) end
  event('artifact.ready', {vuid = a.vuid, profile = a.profile, fingerprint = a.fingerprint})
end
if a.promotion then move_alias(a.promotion) end
if a.job then land(flight_of(a.vuid, a.profile, a.claimed), a.job, 'succeeded', {stage = 'done', done = a.stages}) end
return string.match(current, '^[^:]+')
