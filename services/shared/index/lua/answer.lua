-- Remembers that a request was answered with a version that existed already. ARGV: vuid, idempotency, repeats (seconds)
-- -> 1; 0: the version is dead, or the Idempotency-Key stands for another version, or will once that version has landed
local before = keyed(a.idempotency)
if not live(a.vuid) or (before and before ~= a.vuid) or is_valid(place_of(place_key(a.idempotency))) then return 0 end
redis.call('SET', 'sr:answered:' .. a.speaker .. ':' .. a.idempotency, a.vuid, 'EX', a.repeats)
return 1
