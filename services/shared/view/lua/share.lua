-- Stores the revision, the ETag and possibly the JSON of a document of which every process keeps a copy, and records that it changed.
-- KEYS: stamp, copies, order of changes, events, the last event that took something away
-- ARGV: stamp, path, revision, ETag and JSON, type of the event, fields of further events as JSON
-- -> 1, or 0 if the stored revision is at least as high.
local stored = redis.call('HGET', KEYS[2], ARGV[2])
local revision = tonumber(ARGV[3])
local known = stored and tonumber(string.match(stored, '^%d+')) or revision - 1
if known >= revision then return 0 end
-- The number of a change is never used again, because processes ask for higher numbers than the last one they have read. The entry
-- with the highest number may have been forgotten, so the number is stored beside the copies too.
local highest = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] or 0
local number = math.max(highest, redis.call('HGET', KEYS[2], 'number') or 0) + 1
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ' ' .. ARGV[4], 'number', number)
redis.call('ZADD', KEYS[3], number, ARGV[2])
local time = redis.call('TIME')
local seconds = string.format('%.17g', time[1] + time[2] / 1000000)
local id = redis.call('XADD', KEYS[4], 'MAXLEN', '~', 50000, '*', 'speaker', '', 'what', ARGV[5], 'at', seconds,
  'takes', '1', 'document', ARGV[2], 'revision', ARGV[3])
redis.call('SET', KEYS[5], id)
-- These events follow the one that makes every process drop its copy, so that a listener that requests again at once gets the
-- new state.
for _, one in ipairs(cjson.decode(ARGV[6])) do
  if tonumber(one.revision) > known then
    local fields = {'at', seconds}
    for name, value in pairs(one) do
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
    redis.call('XADD', KEYS[4], 'MAXLEN', '~', 50000, '*', unpack(fields))
  end
end
return 1
