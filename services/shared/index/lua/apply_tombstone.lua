-- Applies a tombstone. ARGV: seq, number, created_at -> the number of versions that it ended
return tell_tombstone(a)
