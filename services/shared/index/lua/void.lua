-- Voids an artifact whose bytes were lost. Idempotent, and independent of the order of other calls. ARGV: vuid, base, build
-- -> 1: void; 0: the version is dead
return tell_void(a)
