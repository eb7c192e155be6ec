-- Replaces the copy of one speaker by a newer one, and keeps names, counts, digests and events in step. Knows no rule of the
-- domain.
-- KEYS: stamp, copy, names, counts, events, the last event that took something away, speakers by digest, reserved voices
-- ARGV: stamp, revision, etag, document, key of the name ('' if the speaker is not live), voices, bytes, text bytes,
--       the revision that the events start from, the speaker, life, 1 if an event takes something away or else 0,
--       digests that went and digests that came (JSON), events (each the fields of one, JSON)...
-- -> {'kept'} if the stored revision is as high; {'base', stored document} if the events do not start from the stored revision,
--    so that the caller computes them again; {'applied'}.
local stored = redis.call('HMGET', KEYS[2], 'rev', 'key', 'doc', 'voices', 'bytes', 'text_bytes')
local revision = tonumber(stored[1] or '0')
if revision >= tonumber(ARGV[2]) then return {'kept'} end
if revision ~= tonumber(ARGV[9]) then return {'base', stored[3] or ''} end
redis.call('HSET', KEYS[2], 'rev', ARGV[2], 'etag', ARGV[3], 'doc', ARGV[4], 'key', ARGV[5],
  'voices', ARGV[6], 'bytes', ARGV[7], 'text_bytes', ARGV[8])
for place, counted in ipairs({'voices', 'bytes', 'text_bytes'}) do
  local more = tonumber(ARGV[5 + place]) - tonumber(stored[3 + place] or '0')
  redis.call('HINCRBY', KEYS[4], counted, string.format('%.0f', more))
end
if stored[2] and stored[2] ~= '' and stored[2] ~= ARGV[5] then redis.call('ZREM', KEYS[3], stored[2]) end
if ARGV[5] ~= '' then
  redis.call('ZADD', KEYS[3], 0, ARGV[5])
  redis.call('ZREM', KEYS[8], ARGV[10])
end
for _, digest in ipairs(cjson.decode(ARGV[13])) do
  if redis.call('HGET', KEYS[7], digest) == ARGV[10] then redis.call('HDEL', KEYS[7], digest) end
end
for _, digest in ipairs(cjson.decode(ARGV[14])) do redis.call('HSET', KEYS[7], digest, ARGV[10]) end
local last
for place = 15, #ARGV do
  last = redis.call('XADD', KEYS[5], 'MAXLEN', '~', 50000, '*', 'speaker', ARGV[10], 'revision', ARGV[2], 'life', ARGV[11],
    unpack(cjson.decode(ARGV[place])))
end
if ARGV[12] == '1' then redis.call('SET', KEYS[6], last) end
return {'applied'}
