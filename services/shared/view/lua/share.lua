-- Keeps what is to be known of a document of which every process has a copy, and tells that it changed.
-- KEYS: stamp, copies, order of changes, events. ARGV: stamp, path, revision, ETag and JSON, type of the event
-- -> 1, or 0 if the stored revision is as high.
local stored = redis.call('HGET', KEYS[2], ARGV[2])
if stored and tonumber(string.match(stored, '^%d+')) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ' ' .. ARGV[4])
local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] or '0'
redis.call('ZADD', KEYS[3], tonumber(last) + 1, ARGV[2])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'speaker', '', 'what', ARGV[5], 'document', ARGV[2], 'revision', ARGV[3])
return 1
