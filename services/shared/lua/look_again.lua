-- Puts off housekeeping's next look at this speaker, or ends it. ARGV: seen (score it was due at), seconds or nothing
-- -> 1 done, 0 something happened since
local score = redis.call('ZSCORE', dirty, a.speaker)
if not score or tonumber(score) ~= a.seen then return 0 end
if not a.seconds then return redis.call('ZREM', dirty, a.speaker) end
redis.call('ZADD', dirty, a.now + a.seconds, a.speaker)
return 1
