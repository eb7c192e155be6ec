-- No place is given out twice, also where a fact changes nothing else. ARGV: seq
raise_mark('seq', a.seq)
return 1
