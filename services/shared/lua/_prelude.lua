-- Prepended to every script. One hash holds all that the index knows of a speaker:
--   seq num at tomb live key     high-water marks, the tombstone's seq, number of live versions, the speaker's key
--   bytes                        what its live versions were uploaded with, texts and brought artifacts too, as far as {names}:bytes counts them
--   damaged                      seq of a version that was not deleted and whose record is damaged or cannot be read now
--   unreadable                   names of the versions (vuid) and artifacts (vuid:akey) whose record cannot be read now
--   v:{vuid}                     {seq}:{JSON of the version record}
--   a:{alias}  p:{alias}         {seq}:{uid}:{vuid}, the last move by hand and the highest automatic one
--   ra:{alias}  rdel             {seq}:{now}, the last place reserved for a move by hand; {seq}, for a tombstone
--   rp:{alias}                   {last seq}:{JSON}, automatic moves on their way: seq -> at, vuid, serves
--   r:{vuid}:{akey}              {winner}:{JSON of the artifact record}
--   b:{vuid}:{base}              highest build that was ever ready of an akey without its build
--   w:{vuid}:{akey}              1: this artifact's bytes were lost, nothing counts under its key any more
--   g:{vuid}:{akey}              token of the one call that began to publish it, '*': several did
--   x:{vuid}:{akey}              {attempt}:{JSON of the failure record}
--   f:{vuid}:{profile}:{fp}      {job id}:{queued|processing}, the one computation in flight (fp empty: not known yet)
--   k:{vuid}                     names of its r:, x:, w: and f: fields, without the vuid; what they name may be gone
--   k:                           names of the a: and p: fields; what they name may be gone
--   i:{idempotency}              vuid of the version that was registered with that key
-- Beside it, `order`: {seq}:{vuid} of the live versions, scored by number. `look` reads single versions by these.
-- KEYS: speaker hash, boot, events, names, dirty      ARGV: what the caller trusts boot to be (empty: rebuilding), JSON
local speaker, boot, events, names, dirty = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local a = cjson.decode(ARGV[2])
if ARGV[1] ~= '' and redis.call('GET', boot) ~= ARGV[1] then return redis.error_reply('GATE closed') end

local function mark(field) return tonumber(redis.call('HGET', speaker, field) or '0') end
local function raise_mark(field, value)
  if value and value > mark(field) then redis.call('HSET', speaker, field, string.format('%.0f', value)) end
end
local function void(vuid, akey) return redis.call('HEXISTS', speaker, 'w:' .. vuid .. ':' .. akey) == 1 end
local order = 'sr:order:' .. a.speaker
local function in_order(seq, vuid) return string.format('%015.0f:', seq) .. vuid end
-- Makes a field known to `look`. vuid: of the version that it belongs to; empty: none. field: its name without the vuid.
local function note(vuid, field)
  local noted = redis.call('HGET', speaker, 'k:' .. vuid) or ''
  if not string.find(noted .. ' ', ' ' .. field .. ' ', 1, true) then
    redis.call('HSET', speaker, 'k:' .. vuid, noted .. ' ' .. field)
  end
end
local function live(vuid) return redis.call('HEXISTS', speaker, 'v:' .. vuid) == 1 end
-- What a version was uploaded with; `value` as in v:{vuid}.
local function bytes_of(value)
  local record, bytes = cjson.decode(string.match(value, '^%d+:(.+)$')), 0
  if type(record.clip) == 'table' then bytes = record.clip.size end
  for _, artifact in ipairs(record.given or {}) do bytes = bytes + artifact.size end
  for _, text in ipairs({'name', 'consent', 'ref_text', 'description'}) do
    if type(record[text]) == 'string' then bytes = bytes + #record[text] end
  end
  return bytes
end
-- Of an artifact, if somebody brought it; `value` as in r:{vuid}:{akey}, or nothing.
local function bytes_brought(value)
  local record = cjson.decode(string.match(value or '', '^[^:]+:(.+)$') or '{}')
  return string.match(record.attempt or '', '%-upload$') and record.size or 0
end
-- Of this speaker, and of all in its namespace.
local function count_bytes(bytes)
  bytes = string.format('%.0f', math.max(bytes, -mark('bytes')) + 0) -- '-0' is no integer
  redis.call('HINCRBY', speaker, 'bytes', bytes)
  redis.call('INCRBY', names .. ':bytes', bytes)
end
local function event(kind, fields)
  if a.quiet then return end -- a rebuild tells nothing new
  fields.type = kind; fields.speaker = a.speaker; fields.at = a.now
  redis.call('XADD', events, 'MAXLEN', '~', '50000', '*', 'd', cjson.encode(fields))
end
-- Housekeeping looks at this speaker again, at the latest in so many seconds.
local function look_again(seconds) redis.call('ZADD', dirty, 'LT', a.now + seconds, a.speaker) end
local function job_key(id) return 'sr:job:' .. id end
local function move_job(id, state, fields)
  local key = job_key(id)
  local before = redis.call('HMGET', key, 'state', 'ns', 'created_at')
  if not before[1] then return end
  local jobs = 'sr:jobs:' .. before[2]
  redis.call('HSET', key, 'state', state)
  for name, value in pairs(fields) do redis.call('HSET', key, name, tostring(value)) end
  if before[1] ~= state then
    redis.call('ZREM', jobs .. ':' .. before[1], id)
    redis.call('ZADD', jobs .. ':' .. state, before[3], id)
  end
  event('job.updated', {job = id, state = state})
end
local function finish_job(id, state, fields)
  fields.finished_at = a.now
  move_job(id, state, fields)
end
local function flight_of(vuid, profile, fingerprint) return 'f:' .. vuid .. ':' .. profile .. ':' .. fingerprint end
-- Ends the flight that belongs to this job, if it still does.
local function land(field, id, state, fields)
  local flight = redis.call('HGET', speaker, field)
  if not flight or string.match(flight, '^[^:]+') ~= id then return false end
  redis.call('HDEL', speaker, field)
  finish_job(id, state, fields)
  return true
end
local function promotions_of(alias)
  return cjson.decode(string.match(redis.call('HGET', speaker, 'rp:' .. alias) or '', '^%d+:(.+)$') or '{}')
end
local function keep_promotions(alias, last, promotions)
  if next(promotions) == nil then
    redis.call('HDEL', speaker, 'rp:' .. alias)
  else
    redis.call('HSET', speaker, 'rp:' .. alias, string.format('%.0f:', last) .. cjson.encode(promotions))
  end
end
local function has_arrived(move)
  local promotions, last = promotions_of(move.alias), 0
  promotions[string.format('%.0f', move.seq)] = nil
  for seq in pairs(promotions) do last = math.max(last, tonumber(seq)) end
  keep_promotions(move.alias, last, promotions)
end
local function move_alias(move)
  raise_mark('seq', move.seq)
  if move.automatic then has_arrived(move) end
  if move.seq <= mark('tomb') then return 0 end
  local field = (move.automatic and 'p:' or 'a:') .. move.alias
  local current = redis.call('HGET', speaker, field)
  if current then
    local seq, uid = string.match(current, '^(%d+):([^:]+):')
    local order = tonumber(seq) - move.seq
    if move.automatic then order = 0 end -- promotions are ordered by their targets, which uid begins with: `AliasFact.rank`
    if order > 0 or (order == 0 and uid >= move.uid) then return 0 end
  end
  redis.call('HSET', speaker, field, string.format('%.0f', move.seq) .. ':' .. move.uid .. ':' .. move.vuid)
  note('', field)
  event('alias.updated', {alias = move.alias, vuid = move.vuid})
  return 1
end
