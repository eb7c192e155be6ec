-- Removes what an older index has left of a speaker that the bucket does not know. ARGV: listed_in (the epoch in which it was
-- looked for there) -> 1, or 0: it has been admitted meanwhile
if a.listed_in ~= epoch_text then return redis.error_reply('EPOCH over') end
if known then return 0 end
redis.call('DEL', speaker, order)
return 1
