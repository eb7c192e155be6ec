-- Puts off housekeeping's next look at this speaker, or ends it. ARGV: seen (score it was due at), seconds or nothing
-- -> the new score; nothing if it ended, or something happened since
local score = redis.call('ZSCORE', dirty, a.speaker)
if not score or tonumber(score) ~= a.seen then return false end
if not a.seconds then redis.call('ZREM', dirty, a.speaker); return false end
redis.call('ZADD', dirty, a.now + a.seconds, a.speaker)
return redis.call('ZSCORE', dirty, a.speaker)
