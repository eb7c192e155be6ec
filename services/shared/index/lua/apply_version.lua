-- Applies a version. Idempotent, and independent of the order of other calls. ARGV: seq, vuid, number, created_at, key, record
-- -> see `tell_version`
return tell_version(a)
