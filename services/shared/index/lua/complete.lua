-- Records that every speaker of the bucket has been admitted. From now on, a speaker without a hash does not exist.
if a.listed_in ~= epoch_text then return redis.error_reply('EPOCH over') end -- facts that landed since may be missing
redis.call('SET', 'sr:complete', epoch_text)
return 1
