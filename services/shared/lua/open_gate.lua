-- The index is what the facts say. ARGV: stamp, token. What was reserved before a loss of this server's data may still be put:
-- it comes before everything from now on, because every place from now on is behind the clock.
if redis.call('GET', 'sr:rebuild') ~= a.token then return redis.error_reply('LOST') end
redis.call('DEL', 'sr:rebuild')
local base = math.max(math.floor(a.now) * 100, tonumber(redis.call('GET', 'sr:base') or '0'))
redis.call('SET', 'sr:base', string.format('%.0f', base))
redis.call('SET', boot, a.stamp)
return 1
