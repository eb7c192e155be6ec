-- Records that a sweep of all speakers is finished. ARGV: listed_in (the epoch in which it began), swept
-- A sweep of another index does not answer requests that were made in this one.
if a.listed_in ~= epoch_text then return redis.error_reply('EPOCH over') end
redis.call('SET', 'sr:swept', a.swept)
redis.call('DEL', 'sr:sweeping')
return 1
