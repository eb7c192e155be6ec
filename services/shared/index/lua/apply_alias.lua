-- ARGV: seq, alias, automatic, uid, vuid -> 1 it is the last move of its kind, 0 a later one is, or a tombstone covers it
return move_alias(a)
