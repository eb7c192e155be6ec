-- From here on only the rebuild of this token may reset speakers and open the gate. ARGV: stamp, token
if redis.call('GET', boot) == a.stamp then return redis.error_reply('LOST open already') end
redis.call('SET', 'sr:rebuild', a.token)
return 1
