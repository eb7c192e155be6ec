-- Removes what an older index has left of a speaker that the bucket does not have. ARGV: listed_in (the epoch in which the
-- bucket was searched) -> 1; 0: the speaker has been admitted meanwhile
if a.listed_in ~= epoch_text then return redis.error_reply('EPOCH over') end
if known then return 0 end
redis.call('DEL', speaker, order)
return 1
