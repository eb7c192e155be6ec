-- ARGV: seq, number, created_at -> number of versions killed
return tell_tombstone(a)
