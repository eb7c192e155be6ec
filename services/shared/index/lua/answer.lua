-- Remembers that a request was answered with a version that was there already. ARGV: vuid, idempotency, repeats (seconds)
-- -> 1; 0: that version is dead, or the request's Idempotency-Key stands for another one, or will as soon as that has landed
local before = keyed(a.idempotency)
if not live(a.vuid) or (before and before ~= a.vuid) or is_valid(place_of(place_key(a.idempotency))) then return 0 end
redis.call('SET', 'sr:answered:' .. a.speaker .. ':' .. a.idempotency, a.vuid, 'EX', a.repeats)
return 1
