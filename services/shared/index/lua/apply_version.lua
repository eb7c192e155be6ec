-- ARGV: seq, vuid, number, created_at, key, record -> see `tell_version`. Idempotent, in any order with the others.
return tell_version(a)
