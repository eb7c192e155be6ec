-- Every speaker that the bucket knows has been admitted: a speaker without a hash is none from now on.
if a.listed_in ~= epoch_text then return redis.error_reply('EPOCH over') end -- what landed since may be missing
redis.call('SET', 'sr:complete', epoch_text)
return 1
