-- Postpones housekeeping's next look at this speaker, or cancels it. ARGV: seen (the score at which it was due), seconds or none
-- -> the new score; nothing: it was canceled, or something happened since
local score = redis.call('ZSCORE', dirty, a.speaker)
if not score or tonumber(score) ~= a.seen then return false end
if not a.seconds then redis.call('ZREM', dirty, a.speaker); return false end
redis.call('ZADD', dirty, a.now + a.seconds, a.speaker)
return redis.call('ZSCORE', dirty, a.speaker)
