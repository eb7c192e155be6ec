-- Takes the next place in a speaker's order. ARGV: kind 'ver'|'als'|'del', now, last {seq, number, created_at} (the highest
-- values that there are)
-- for 'ver': max_speakers, max_versions; bytes, max_bytes (of this upload; of all in the namespace); texts, max_texts (the same
--   for texts alone); immutable (refuse a live speaker), present (refuse one that is not live), vuid, request, idempotency;
--   repeats (seconds for which the same request is given the same place again), landing (seconds for which the writes of an attempt may still land)
-- for 'als': alias, expected, pending (seconds that a move may take); for a promotion: automatic, vuid (its target), serves (the
--   profiles for which the target has an artifact)
-- for 'del': unchanged (the last seq that the caller has seen)
-- -> {seq, number, created_at, vuid}
-- Errors: DAMAGED, UNREADABLE, QUOTA, EXISTS, NOTFOUND, MOVED, REUSED, LANDING, FULL, VERSIONS, RESERVED, CENSUS, EXHAUSTED;
-- TEXTS: the texts exceed the limit; MADE: an earlier attempt of this request, or another request with its key, made the
-- version; UNTOLD: the facts have to be told first.
-- A delete whose process died before it stored anything never lands. It counts until the facts are listed after its time.
local deleting, deleting_since = reserved('rdel')
if a.kind == 'ver' and deleting > 0 and a.now - deleting_since >= a.window then return redis.error_reply('UNTOLD') end
-- The caller has looked for a version with this key before. It may have been registered since, in a place that was lost with
-- another server. It is no answer if a delete that was begun later may still remove it.
local made = a.idempotency and keyed(a.idempotency)
if made and tonumber(string.match(redis.call('HGET', speaker, 'v:' .. made), '^%d+')) > deleting then
  return redis.error_reply('MADE')
end
local kept = a.idempotency and place_key(a.idempotency)
local only = a.immutable and 'sr:place:' .. a.speaker -- an immutable speaker has one place at a time for all requests
-- A voice counts from the moment it is given a place. Otherwise simultaneous uploads would all find the last one free.
local is_live = mark('live') > 0
local function has_room()
  redis.call('ZREMRANGEBYSCORE', coming, '-inf', a.now - a.landing)
  if is_live or redis.call('ZSCORE', coming, a.speaker) then return true end
  return redis.call('ZCARD', names) + redis.call('ZCARD', coming) < a.max_speakers
end
local function expect(seq)
  if is_live and deleting == 0 then return end
  raise_mark('coming', seq)
  redis.call('ZADD', coming, a.now, a.speaker)
  redis.call('EXPIRE', coming, a.landing)
end
local function keep(place)
  place.at = a.now
  local places = open_places()
  places[place.vuid] = a.now
  keep_open(places)
  for _, key in ipairs({kept or only, kept and only or nil}) do redis.call('SET', key, cjson.encode(place), 'EX', a.repeats + a.landing) end
end
local place = kept and place_of(kept) or {seq = 0}
-- A repeated request makes the same version, unless a delete came in between or may still land. This ends after a time, because
-- the first attempt's blobs become garbage. While the last attempt may still land, no other place is given, because the version
-- would be there twice.
if is_valid(place) then
  local repeatable, landing = a.now - place.first < a.repeats, a.now - place.at < a.landing
  if (repeatable or landing) and place.request ~= a.request then return redis.error_reply('REUSED') end
  if repeatable then
    if not has_room() then return redis.error_reply('QUOTA') end
    expect(place.seq)
    keep(place)
    return {place.seq, place.number, place.created_at, place.vuid}
  end
  if landing then return redis.error_reply('LANDING') end
end
local damaged = mark('damaged') > 0
if a.kind == 'del' then is_live = is_live or damaged elseif damaged then return expect_readable() end
if a.kind == 'ver' then
  if known and census_due() then return redis.error_reply('CENSUS') end
  if is_live and a.immutable then return redis.error_reply('EXISTS') end
  if a.present and not is_live then return redis.error_reply('NOTFOUND') end
  local taken = cjson.decode(only and redis.call('GET', only) or '{"seq":0}')
  if taken.seq > math.max(mark('tomb'), epoch) and a.now - taken.at < a.landing then
    local ours = taken.request == a.request and taken.idempotency == a.idempotency and a.now - taken.first < a.repeats
    if not ours then return redis.error_reply('RESERVED') end
    if not has_room() then return redis.error_reply('QUOTA') end
    expect(taken.seq)
    keep(taken)
    return {taken.seq, taken.number, taken.created_at, taken.vuid}
  end
  -- Neither an immutable speaker nor a key may have two versions, and the version of an earlier place may have landed untold.
  for _, at in pairs((kept or only) and open_places() or {}) do
    if a.now - at >= a.landing and mark('listed') < at + a.landing then return redis.error_reply('UNTOLD') end
  end
  if not has_room() then return redis.error_reply('QUOTA') end
  if a.max_versions and mark('live') >= a.max_versions then return redis.error_reply('VERSIONS') end
  local function stored(what) return tonumber(redis.call('GET', names .. ':' .. what) or '0') end
  if a.max_bytes and stored('bytes') + a.bytes > a.max_bytes then return redis.error_reply('FULL') end
  if a.max_texts and stored('texts') + a.texts > a.max_texts then return redis.error_reply('TEXTS') end
elseif not is_live then
  return redis.error_reply('NOTFOUND')
end
if a.unchanged and mark('seq') ~= a.unchanged then return redis.error_reply('MOVED') end
if a.expected then
  local by_hand = tonumber(string.match(redis.call('HGET', speaker, 'a:' .. a.alias) or '0', '^%d+'))
  local automatic, target = string.match(redis.call('HGET', speaker, 'p:' .. a.alias) or '', '^(%d+):[^:]+:(.+)$')
  local registered = string.match(target and redis.call('HGET', speaker, 'v:' .. target) or '0', '^%d+')
  local in_force = tonumber(registered) > by_hand and tonumber(automatic) or by_hand
  local last, at = reserved('ra:' .. a.alias)
  local on_its_way = not a.automatic and last > by_hand and a.now - at < a.pending
  if on_its_way or in_force ~= a.expected then return redis.error_reply('MOVED') end
end
-- Two pending promotions may come into force in any order. If their targets serve different profiles, the later one could take
-- away a profile that the first has just provided, so the second promotion has to wait.
local promotions = a.automatic and promotions_of(a.alias) or {}
for seq, other in pairs(promotions) do
  if a.now - other.at >= a.pending then
    promotions[seq] = nil
  elseif other.vuid ~= a.vuid and other.serves ~= a.serves then
    look_again(10)
    return redis.error_reply('MOVED')
  end
end
-- A record beyond the last place could not be parsed. Only a delete can still take the last place, which covers all others.
local seq = math.max(mark('seq'), epoch) + 1
local created_at = a.kind == 'ver' and math.max(math.floor(a.now), mark('at') + 1) or mark('at')
local exhausted = seq > a.last.seq or (a.kind == 'ver' and (mark('num') >= a.last.number or created_at > a.last.created_at))
if exhausted and a.kind ~= 'del' then return redis.error_reply('EXHAUSTED') end
seq = math.min(seq, a.last.seq)
raise_mark('seq', seq)
redis.call('HSET', speaker, 'epoch', epoch_text)
if not known then redis.call('HSET', speaker, 'listed', string.format('%.3f', a.now)) end
if a.kind == 'del' then keep_reserved('rdel', seq) end
if a.automatic then
  promotions[string.format('%.0f', seq)] = {at = a.now, vuid = a.vuid, serves = a.serves}
  keep_promotions(a.alias, seq, promotions)
elseif a.kind == 'als' then
  keep_reserved('ra:' .. a.alias, seq)
end
local number = mark('num')
if a.kind == 'ver' then
  number = redis.call('HINCRBY', speaker, 'num', 1)
  redis.call('HSET', speaker, 'at', string.format('%.0f', created_at))
  expect(seq)
end
if a.kind == 'ver' and (kept or only) then
  keep({
    seq = seq, number = number, created_at = created_at, vuid = a.vuid, request = a.request, idempotency = a.idempotency,
    first = a.now
  })
end
look_again(10)
return {seq, number, created_at, a.vuid}
