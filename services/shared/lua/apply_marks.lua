-- What the facts say beyond single ones: no place is given out twice. ARGV: seq, number, created_at, damaged
raise_mark('seq', a.seq); raise_mark('num', a.number); raise_mark('at', a.created_at)
if a.damaged > mark('tomb') then
  redis.call('HSET', speaker, 'damaged', string.format('%.0f', a.damaged))
else
  redis.call('HDEL', speaker, 'damaged')
end
return 1
