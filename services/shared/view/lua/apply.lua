-- Replaces copies of speakers of one namespace by newer ones, and keeps names, counts, digests and events up to date. Knows
-- no rule of the domain.
-- KEYS: stamp, names, counts, events, the last event that took something away, speakers by digest, pinned names, copies...
-- ARGV: stamp, a JSON object for each copy, all documents one after the other, fields of the event for all speakers that
--       were admitted (JSON), names of the counts... Members of an object: speaker, size (that of the document in bytes), rev, etag, life, key (that of
--       the name, '' if the speaker is not live), pinned (false if it is not live), counts, base (the revision that the events start from),
--       went and came (digests), events (each the fields of one), takes (an event takes something away), admitted (the speaker
--       existed before the view received it).
-- -> for each copy: 'applied'; 'kept' if the stored revision is at least as high; {stored document} if the events do not start from the
--    stored revision, so that the caller computes them again.
local COUNTED = {unpack(ARGV, 5)}
local admitted = {}
local function apply(copy, new, document)
  local stored = redis.call('HMGET', copy, 'rev', 'key', unpack(COUNTED))
  local revision = tonumber(stored[1] or '0')
  if revision >= new.rev then return 'kept' end
  if revision ~= new.base then return {redis.call('HGET', copy, 'doc') or ''} end
  redis.call('HSET', copy, 'rev', new.rev, 'etag', new.etag, 'doc', document, 'key', new.key)
  for place, counted in ipairs(COUNTED) do
    local count = new.counts[place]
    local more = count - tonumber(stored[2 + place] or '0')
    if more ~= 0 then
      redis.call('HSET', copy, counted, string.format('%.0f', count))
      redis.call('HINCRBY', KEYS[3], counted, string.format('%.0f', more))
    end
  end
  if stored[2] and stored[2] ~= '' and stored[2] ~= new.key then redis.call('ZREM', KEYS[2], stored[2]) end
  if stored[2] and stored[2] ~= '' and not new.pinned then redis.call('ZREM', KEYS[7], stored[2]) end
  if new.key ~= '' then redis.call('ZADD', KEYS[2], 0, new.key) end
  if new.pinned then redis.call('ZADD', KEYS[7], 0, new.key) end
  for _, digest in ipairs(new.went) do
    if redis.call('HGET', KEYS[6], digest) == new.speaker then redis.call('HDEL', KEYS[6], digest) end
  end
  for _, digest in ipairs(new.came) do redis.call('HSET', KEYS[6], digest, new.speaker) end
  local last
  for _, event in ipairs(new.events) do
    last = redis.call('XADD', KEYS[4], 'MAXLEN', '~', 50000, '*', 'speaker', new.speaker, 'revision', new.rev, 'life', new.life,
      unpack(event))
  end
  if new.admitted then admitted[#admitted + 1] = new.speaker end
  if new.takes then redis.call('SET', KEYS[5], last) end
  return 'applied'
end
local answers, last = {}, 0
for place, new in ipairs(cjson.decode(ARGV[2])) do
  answers[place] = apply(KEYS[7 + place], new, string.sub(ARGV[3], last + 1, last + new.size))
  last = last + new.size
end
if #admitted > 0 then
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', 50000, '*', 'speakers', cjson.encode(admitted), unpack(cjson.decode(ARGV[4])))
end
return answers
