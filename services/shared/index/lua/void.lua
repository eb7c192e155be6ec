-- ARGV: vuid, base, build -> 1 void, 0 the version is dead. Idempotent, in any order with the others.
return tell_void(a)
