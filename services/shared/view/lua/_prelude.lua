-- Stands before each script. KEYS[1]: the stamp. ARGV[1]: the stamp that the caller trusts.
-- Error: OVER: another generation has begun here, or the server has lost the one that the caller trusts.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('OVER') end
