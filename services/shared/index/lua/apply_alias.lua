-- Applies a move of an alias. ARGV: seq, alias, automatic, uid, vuid
-- -> 1: it is the last move of its kind; 0: there is a later move, or a tombstone covers it
return move_alias(a)
