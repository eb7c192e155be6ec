-- A sweep of all speakers was finished. ARGV: listed_in (the epoch in which it was begun), swept
-- That of another index may not answer what was asked for in this one.
if a.listed_in ~= epoch_text then return redis.error_reply('EPOCH over') end
redis.call('SET', 'sr:swept', a.swept)
redis.call('DEL', 'sr:sweeping')
return 1
