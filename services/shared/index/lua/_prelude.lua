-- Prepended to every script. One hash holds all that the index knows of a speaker:
--   epoch listed                 the index that it was admitted to (empty: it could not be admitted), and when its facts were
--                                listed for that
--   seq num at tomb live key     high-water marks, the tombstone's seq, number of live versions, the speaker's key
--   bytes                        uploaded bytes of its live versions, texts and artifacts included, as far as {names}:bytes counts them
--   texts                        bytes of the texts of its live versions, which are in their records here, as far as {names}:texts counts them
--   damaged                      seq of a version that was not deleted and whose record is damaged or cannot be read now
--   unreadable                   names of the versions (vuid), censuses (census-seq) and artifacts (vuid:akey) whose record
--                                cannot be read now
--   undecided                    1: artifacts or moves were too young when it was admitted, and were not told since
--   census                       {high}:{put|pending}:{JSON of vuids}: only these versions of the places up to high count
--   v:{vuid}                     {seq}:{JSON of the version record}
--   a:{alias}  p:{alias}         {seq}:{uid}:{vuid}, the last move by hand and the highest automatic one
--   open                         JSON: vuid -> when its place was given out last. Its fact may be in the bucket, untold
--   coming                       the last place for which the speaker was put into {names}:coming
--   ra:{alias}  rdel             {seq}:{now}, the last place reserved for a move by hand; for a tombstone that is untold and may land
--   rp:{alias}                   {last seq}:{JSON}, pending automatic moves: seq -> at, vuid, serves
--   r:{vuid}:{akey}              {winner}:{JSON of the artifact record}
--   b:{vuid}:{base}              highest build that was ever ready; base is an akey without its build
--   w:{vuid}:{akey}              1: this artifact's bytes were lost, and it no longer counts
--   g:{vuid}:{akey}              token of the only call that began to publish it; '*': several did
--   x:{vuid}:{akey}              {attempt}:{JSON of the failure record}
--   f:{vuid}:{profile}:{fp}      {job id}:{queued|processing}, the one pending extraction (fp empty: not known yet)
--   k:{vuid}                     names of its r:, x:, w: and f: fields, without the vuid; such a field may be gone;
--                                and r: alone, if it was registered with artifacts
--   k:                           names of the a: and p: fields; such a field may be gone
--   i:{idempotency}              vuid of the version that was registered with that key
-- The sorted set `order` holds {seq}:{vuid} of the live versions, scored by number. `look` finds single versions by it.
-- {names}:coming holds the speakers that are not live, or are being deleted, and have a place for a version that may still
-- land, scored by when the place was given out last. They count against the limit of voices.
-- {names}:blobs holds {slug}:{vuid} of each artifact that a live version has, by the first half of the SHA-256 of its file.
-- sr:place:{speaker}:{idempotency} holds, for a while, the place that a request was given, and
-- sr:answered:{speaker}:{idempotency} the vuid of the existing version that it was answered with.
-- KEYS: speaker hash, boot, events, names (of any epoch), dirty      ARGV: the content of boot that the caller trusts, JSON
local speaker, boot, events, dirty = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local a = cjson.decode(ARGV[2])
if redis.call('GET', boot) ~= ARGV[1] then return redis.error_reply('GATE closed') end
-- Every place that was reserved before this index was begun is at most `epoch`. The names of an older index are never read
-- again.
local epoch_text = string.match(ARGV[1], '%d+$')
local epoch = tonumber(epoch_text)
local names = KEYS[4] .. ':' .. epoch_text
local coming, blobs = names .. ':coming', names .. ':blobs'
local known = redis.call('HGET', speaker, 'epoch') == epoch_text
-- Returns whether a write that was reserved before this index was begun may still land at that time.
local function unsettled(at) return at < epoch / 100 + a.window end
if not known and not a.unknown then
  -- Once every speaker of the bucket has been admitted, a speaker without a hash is new. Earlier it may have landed from an
  -- upload before the loss.
  local new = a.new and redis.call('GET', 'sr:complete') == epoch_text and redis.call('EXISTS', speaker) == 0
  if not new or unsettled(a.now) then return redis.error_reply('ABSENT') end
end

local function mark(field) return tonumber(redis.call('HGET', speaker, field) or '0') end
local function raise_mark(field, value)
  if value and value > mark(field) then redis.call('HSET', speaker, field, string.format('%.0f', value)) end
end
local function void(vuid, akey) return redis.call('HEXISTS', speaker, 'w:' .. vuid .. ':' .. akey) == 1 end
local order = 'sr:order:' .. a.speaker
local function in_order(seq, vuid) return string.format('%015.0f:', seq) .. vuid end
-- Makes a field known to `look`. vuid: the version that it belongs to, or empty. field: its name without the vuid.
local function note(vuid, field)
  local noted = redis.call('HGET', speaker, 'k:' .. vuid) or ''
  if not string.find(noted .. ' ', ' ' .. field .. ' ', 1, true) then
    redis.call('HSET', speaker, 'k:' .. vuid, noted .. ' ' .. field)
  end
end
local function unnote(vuid, field)
  local left = {}
  for one in string.gmatch(redis.call('HGET', speaker, 'k:' .. vuid) or '', '%S+') do
    if one ~= field then table.insert(left, one) end
  end
  redis.call('HDEL', speaker, 'k:' .. vuid)
  if #left > 0 then redis.call('HSET', speaker, 'k:' .. vuid, ' ' .. table.concat(left, ' ')) end
end
local function live(vuid) return redis.call('HEXISTS', speaker, 'v:' .. vuid) == 1 end
-- Returns the vuid of the version that an Idempotency-Key stands for; nothing if the key is new or the version is dead.
local function keyed(idempotency)
  local vuid = redis.call('HGET', speaker, 'i:' .. idempotency) or redis.call('GET', 'sr:answered:' .. a.speaker .. ':' .. idempotency)
  return vuid and live(vuid) and vuid or nil
end
-- Returns the last place that was reserved for a move or a delete (ra:{alias} or rdel), and when; 0 and 0 if there is none.
local function reserved(field)
  local seq, at = string.match(redis.call('HGET', speaker, field) or '0', '^(%d+):?(.*)$')
  return tonumber(seq), tonumber(at) or 0
end
local function keep_reserved(field, seq) redis.call('HSET', speaker, field, string.format('%.0f:%.3f', seq, a.now)) end
local function place_of(key) return cjson.decode(redis.call('GET', key) or '{"seq":0}') end
local function place_key(idempotency) return 'sr:place:' .. a.speaker .. ':' .. idempotency end
-- Returns whether a place still belongs to the request that it was given to, and no delete came in between or may still land.
local function is_valid(place) return place.seq > math.max(mark('tomb'), epoch, (reserved('rdel'))) end
-- Makes the file of an artifact findable by its digest, or no longer findable. record: the artifact's.
local function blob_field(record) return string.sub(record.digest, 8, 39) end -- behind 'sha256:'
local function place_blob(vuid, record)
  redis.call('HSET', blobs, blob_field(record), string.match(a.speaker, '/(.+)$') .. ':' .. vuid)
end
local function forget_blob(record) redis.call('HDEL', blobs, blob_field(record)) end
-- Returns the record of a version. value: the content of v:{vuid}.
local function version_in(value) return cjson.decode(string.match(value, '^%d+:(.+)$')) end
-- Returns the record of an artifact. value: the content of r:{vuid}:{akey}.
local function artifact_in(value) return cjson.decode(string.match(value, '^[^:]+:(.+)$')) end
-- Returns the uploaded bytes of a version, and how many of these are texts.
local function bytes_of(record)
  local bytes, texts = 0, 0
  if type(record.clip) == 'table' then bytes = record.clip.size end
  for _, artifact in ipairs(record.given or {}) do bytes = bytes + artifact.size end
  for _, text in ipairs({'name', 'consent', 'ref_text', 'description'}) do
    if type(record[text]) == 'string' then texts = texts + #record[text] end
  end
  return bytes + texts, texts
end
-- Returns the bytes of an artifact if it was uploaded, else 0.
local function bytes_brought(record) return string.match(record.attempt, '%-upload$') and record.size or 0 end
-- Counts bytes of this speaker and of its namespace. what: 'bytes' or 'texts'.
local function count(what, bytes)
  bytes = string.format('%.0f', math.max(bytes, -mark(what)) + 0) -- '-0' is no integer
  redis.call('HINCRBY', speaker, what, bytes)
  redis.call('INCRBY', names .. ':' .. what, bytes)
end
-- Counts a version that is new (sign 1) or removed (sign -1), and makes the artifacts it came with findable, or no longer.
local function count_version(vuid, value, sign)
  local record = version_in(value)
  local bytes, texts = bytes_of(record)
  count('bytes', sign * bytes)
  count('texts', sign * texts)
  for _, given in ipairs(record.given or {}) do
    if sign > 0 then place_blob(vuid, given) else forget_blob(given) end
  end
end
-- takes_away: whether an answer that was right before may be wrong from now on. `leases.py` waits for such events.
local function publish(kind, fields, takes_away)
  fields.type = kind; fields.speaker = a.speaker; fields.at = a.now; fields.takes = takes_away or nil
  local id = redis.call('XADD', events, 'MAXLEN', '~', '50000', '*', 'd', cjson.encode(fields))
  if takes_away then redis.call('SET', 'sr:taken', id) end
end
-- Publishes a change of a speaker. What is told while a speaker is admitted is no change.
local function event(kind, fields, takes_away)
  if known then publish(kind, fields, takes_away) end
end
-- Makes housekeeping look at this speaker again within this many seconds.
local function look_again(seconds) redis.call('ZADD', dirty, 'LT', a.now + seconds, a.speaker) end
-- sr:jobs:{namespace} and sr:jobs:{namespace}:{state} hold the ids of jobs, scored by when they were created, and
-- sr:jobs:{namespace}:{state}:{profile} by when they ended, if they have.
local function job_key(id) return 'sr:job:' .. id end
local function move_job(id, state, fields)
  local key = job_key(id)
  local before = redis.call('HMGET', key, 'state', 'ns', 'created_at', 'profile')
  if not before[1] then return end
  local jobs = 'sr:jobs:' .. before[2]
  redis.call('HSET', key, 'state', state)
  for name, value in pairs(fields) do redis.call('HSET', key, name, tostring(value)) end
  if before[1] ~= state then
    redis.call('ZREM', jobs .. ':' .. before[1], id)
    redis.call('ZREM', jobs .. ':' .. before[1] .. ':' .. before[4], id)
    redis.call('ZADD', jobs .. ':' .. state, before[3], id)
    redis.call('ZADD', jobs .. ':' .. state .. ':' .. before[4], fields.finished_at or before[3], id)
  end
  event('job.updated', {job = id, state = state})
end
local function finish_job(id, state, fields)
  fields.finished_at = a.now
  move_job(id, state, fields)
end
local function pending_field(vuid, profile, fingerprint) return 'f:' .. vuid .. ':' .. profile .. ':' .. fingerprint end
local function forget_pending(field)
  redis.call('HDEL', speaker, field)
  -- A version that was dead when the index was begun has no other field, and no tombstone will remove this one.
  local vuid, rest = string.match(field, '^f:([^:]+):(.+)$')
  if not live(vuid) then unnote(vuid, 'f:' .. rest) end
end
-- Ends the pending extraction of this job, if it still belongs to this job.
local function land(field, id, state, fields)
  local pending = redis.call('HGET', speaker, field)
  if not pending or string.match(pending, '^[^:]+') ~= id then return false end
  forget_pending(field)
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
  event('alias.updated', {alias = move.alias, vuid = move.vuid}, mark('live') > 1)
  return 1
end

-- The last census says which versions count. A version that was reserved before a loss of Redis and landed after the census
-- does not exist, because its number has been given out again.
local function census()
  local high, state, vuids = string.match(redis.call('HGET', speaker, 'census') or '', '^(%d+):(%a+):(.+)$')
  return tonumber(high or '0'), state, vuids
end
local function counts(seq, vuid)
  local high, _, vuids = census()
  return seq > high or string.find(vuids, '"' .. vuid .. '"', 1, true) ~= nil
end
local function census_due()
  local high, state = census()
  return unsettled(tonumber(redis.call('HGET', speaker, 'listed') or '0')) and (high < epoch or state ~= 'put')
end
-- Removes versions with everything that was made from them. Returns how many versions there were.
local function remove_versions(is_dead)
  local all, dead, removed = redis.call('HGETALL', speaker), {}, 0
  for i = 1, #all, 2 do
    local vuid = string.match(all[i], '^v:(.+)$')
    if vuid and is_dead(tonumber(string.match(all[i + 1], '^%d+')), vuid) then dead[vuid] = true; removed = removed + 1 end
  end
  if removed == 0 then return 0 end
  for i = 1, #all, 2 do
    local kind, vuid = string.match(all[i], '^([vrbgxwfk]):([^:]+)')
    if string.match(all[i], '^i:') then vuid, kind = all[i + 1], 'i' end
    if kind and dead[vuid] then
      if kind == 'v' then
        count_version(vuid, all[i + 1], -1)
        redis.call('ZREM', order, in_order(tonumber(string.match(all[i + 1], '^%d+')), vuid))
      end
      if kind == 'r' then
        local record = artifact_in(all[i + 1])
        count('bytes', -bytes_brought(record))
        forget_blob(record)
      end
      redis.call('HDEL', speaker, all[i])
      if kind == 'f' then finish_job(string.match(all[i + 1], '^[^:]+'), 'superseded', {}) end
    end
  end
  if redis.call('HINCRBY', speaker, 'live', -removed) <= 0 then
    redis.call('ZREM', names, redis.call('HGET', speaker, 'key'))
  end
  return removed
end
-- Applies a later census than the present one, or records that the present one is in the bucket.
local function tell_census(high, state, vuids)
  local present, told = census()
  if high < present or (high == present and told == 'put') then return end
  redis.call('HSET', speaker, 'census', string.format('%.0f:%s:%s', high, state, vuids))
  local removed = remove_versions(function(seq, vuid) return not counts(seq, vuid) end)
  if removed > 0 then event('versions.removed', {versions = removed}, true) end
end
-- Returns the places of versions that may have landed although their process died before it told the index.
local function open_places() return cjson.decode(redis.call('HGET', speaker, 'open') or '{}') end
local function keep_open(places)
  if next(places) == nil then redis.call('HDEL', speaker, 'open')
  else redis.call('HSET', speaker, 'open', cjson.encode(places)) end
end
-- A live speaker no longer counts as coming, unless a pending delete leaves only a later place.
local function arrived(seq)
  if seq >= mark('coming') or (reserved('rdel')) == 0 then redis.call('ZREM', coming, a.speaker) end
end
-- Returns 0: dead; 1: live; 2: live, but reserved before this index, so it may be acknowledged only after a census counts it;
-- 3: not counted.
local function tell_version(v)
  if not counts(v.seq, v.vuid) then return 3 end
  local places = open_places()
  if places[v.vuid] then places[v.vuid] = nil; keep_open(places) end
  raise_mark('seq', v.seq); raise_mark('num', v.number); raise_mark('at', v.created_at)
  if v.seq <= mark('tomb') then return 0 end
  local value = string.format('%.0f', v.seq) .. ':' .. v.record
  if redis.call('HSETNX', speaker, 'v:' .. v.vuid, value) == 1 then
    count_version(v.vuid, value, 1)
    redis.call('HINCRBY', speaker, 'live', 1)
    redis.call('ZADD', order, v.number, in_order(v.seq, v.vuid))
    if v.given then note(v.vuid, 'r:') end
    if v.idempotency then redis.call('HSET', speaker, 'i:' .. v.idempotency, v.vuid) end
    redis.call('HSET', speaker, 'key', v.key)
    redis.call('ZADD', names, 0, v.key)
    event('version.created', {vuid = v.vuid, version = v.number})
  end
  arrived(v.seq)
  return v.seq > epoch and 1 or 2
end
-- Returns how many versions it ended. Their jobs are superseded, and moves of aliases are forgotten.
local function tell_tombstone(t)
  raise_mark('seq', t.seq); raise_mark('num', t.number); raise_mark('at', t.created_at)
  if t.seq <= mark('tomb') then return 0 end
  redis.call('HSET', speaker, 'tomb', string.format('%.0f', t.seq))
  if reserved('rdel') <= t.seq then redis.call('HDEL', speaker, 'rdel') end
  if mark('damaged') <= t.seq then redis.call('HDEL', speaker, 'damaged', 'unreadable') end
  for _, field in ipairs(redis.call('HKEYS', speaker)) do
    if string.match(field, '^r?[ap]:') and tonumber(string.match(redis.call('HGET', speaker, field), '^%d+')) <= t.seq then
      redis.call('HDEL', speaker, field)
    end
  end
  local killed = remove_versions(function(seq) return seq <= t.seq end)
  if mark('coming') <= t.seq then redis.call('ZREM', coming, a.speaker) end
  event('voice.deleted', {versions = killed}, true)
  return killed
end
-- Puts an artifact in force, unless another one is. Returns the winner in force; 'dead'; 'void' if its bytes were lost since;
-- nothing if `alone` is not the token of the only call that may have begun to publish.
local function tell_artifact(r, alone)
  if not live(r.vuid) then return 'dead' end
  if void(r.vuid, r.base .. '-' .. r.build) then return 'void' end
  local field = 'r:' .. r.vuid .. ':' .. r.base .. '-' .. r.build
  local current = redis.call('HGET', speaker, field)
  if not current then
    local begun = 'g:' .. r.vuid .. ':' .. r.base .. '-' .. r.build
    if alone and redis.call('HGET', speaker, begun) ~= alone then return nil end
    redis.call('HDEL', speaker, begun)
    current = r.winner .. ':' .. r.record
    redis.call('HSET', speaker, field, current)
    local record = artifact_in(current)
    count('bytes', bytes_brought(record))
    place_blob(r.vuid, record)
    note(r.vuid, 'r:' .. r.base .. '-' .. r.build)
    local best = 'b:' .. r.vuid .. ':' .. r.base
    if r.build > mark(best) then redis.call('HSET', speaker, best, r.build) end
    -- It replaces an earlier build, or its version may now be the latest that is ready.
    local replaces = r.build > 1 or mark('live') > 1
    event('artifact.ready', {vuid = r.vuid, profile = r.profile, fingerprint = r.fingerprint}, replaces)
  end
  return string.match(current, '^[^:]+')
end
-- Records that an extraction was given up. It means nothing beside a ready artifact, in any order. Returns 1; 0: dead.
local function tell_failure(x)
  if not live(x.vuid) then return 0 end
  local field = 'x:' .. x.vuid .. ':' .. x.akey
  local current = redis.call('HGET', speaker, field)
  if not void(x.vuid, x.akey) and (not current or string.match(current, '^[^:]+') < x.attempt) then
    redis.call('HSET', speaker, field, x.attempt .. ':' .. x.record)
    note(x.vuid, 'x:' .. x.akey)
    event('artifact.failed', {vuid = x.vuid, profile = x.profile})
  end
  return 1
end
-- Makes all artifacts of a version that are in force findable, except those that it came with.
local function place_blobs(vuid)
  for akey in string.gmatch(redis.call('HGET', speaker, 'k:' .. vuid) or '', ' r:(%S+)') do
    local present = redis.call('HGET', speaker, 'r:' .. vuid .. ':' .. akey)
    if present then place_blob(vuid, artifact_in(present)) end
  end
end
-- Voids an artifact whose bytes were lost. Its build is not used again. Returns 1; 0: the version is dead.
local function tell_void(w)
  if not live(w.vuid) then return 0 end
  local key = w.vuid .. ':' .. w.base .. '-' .. w.build
  if redis.call('HSETNX', speaker, 'w:' .. key, 1) == 1 then
    local lost = redis.call('HGET', speaker, 'r:' .. key)
    if lost then
      count('bytes', -bytes_brought(artifact_in(lost)))
      forget_blob(artifact_in(lost))
    end
    note(w.vuid, 'w:' .. w.base .. '-' .. w.build)
    redis.call('HDEL', speaker, 'r:' .. key, 'x:' .. key, 'g:' .. key)
    place_blobs(w.vuid) -- another build may have the same bytes
    local best = 'b:' .. w.vuid .. ':' .. w.base
    if w.build > mark(best) then redis.call('HSET', speaker, best, w.build) end
    event('artifact.void', {vuid = w.vuid})
    if known then look_again(1) end
  end
  return 1
end
-- Returns an error if a record of the speaker cannot be read, else nothing. Only without an error is a version that is not live
-- certainly dead, because the index does not know versions that could not be read when it was begun.
local function expect_readable()
  if mark('damaged') == 0 then return nil end
  return redis.error_reply(redis.call('HEXISTS', speaker, 'unreadable') == 1 and 'UNREADABLE' or 'DAMAGED')
end
