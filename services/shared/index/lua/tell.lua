-- Tells the index what the facts of one speaker say. What it knows already stays as it is. A speaker that this index does not
-- know yet is admitted. What an older index knew of it is forgotten first, except for the marks, which only rise, and the
-- pending extractions, which jobs prove. ARGV: listed (when the facts were listed), marks, damaged, unreadable (names of
-- versions, censuses and artifacts whose record cannot be read now, separated by spaces), undecided (true if artifacts or moves
-- were left out because they are too young), census and tombstone if there is one, versions, void (artifacts), artifacts,
-- failures, moves -> 1: admitted; 0: it was known
if a.listed_in ~= epoch_text then return redis.error_reply('EPOCH over') end -- facts that landed since may be missing
local admitted, pending_fields = not known, {}
if admitted then
  redis.call('DEL', order)
  for _, field in ipairs(redis.call('HKEYS', speaker)) do
    local vuid, rest = string.match(field, '^f:([^:]+):(.+)$')
    if vuid then pending_fields[#pending_fields + 1] = {vuid, 'f:' .. rest} end
    if not vuid and field ~= 'seq' and field ~= 'num' and field ~= 'at' and field ~= 'rdel' then
      redis.call('HDEL', speaker, field)
    end
  end
  redis.call('HSET', speaker, 'epoch', epoch_text)
  for _, pending in ipairs(pending_fields) do note(pending[1], pending[2]) end
end
if a.listed > mark('listed') then redis.call('HSET', speaker, 'listed', string.format('%.3f', a.listed)) end
-- Facts for these places have landed by now, if they ever will, and so they are told.
local places = open_places()
for vuid, at in pairs(places) do
  if at + a.window <= mark('listed') then places[vuid] = nil end
end
keep_open(places)
local deleting, since = reserved('rdel')
if deleting > 0 and since + a.window <= mark('listed') then redis.call('HDEL', speaker, 'rdel') end
raise_mark('seq', a.marks.seq); raise_mark('num', a.marks.number); raise_mark('at', a.marks.created_at)
-- What the index knows already is served nevertheless.
local unknown = {}
for name in string.gmatch(a.unreadable, '%S+') do
  local found = redis.call('HEXISTS', speaker, 'v:' .. name) + redis.call('HEXISTS', speaker, 'r:' .. name)
  local of_census = tonumber(string.match(name, '^census%-(%d+)$') or '')
  if found == 0 and not (of_census and of_census <= (census())) then table.insert(unknown, name) end
end
if #unknown > 0 then
  a.damaged = math.max(a.damaged, a.marks.seq)
  redis.call('HSET', speaker, 'unreadable', table.concat(unknown, ' '))
else
  redis.call('HDEL', speaker, 'unreadable')
end
if a.damaged > mark('tomb') then
  redis.call('HSET', speaker, 'damaged', string.format('%.0f', a.damaged))
else
  redis.call('HDEL', speaker, 'damaged')
end
-- A speaker that was known already was told of its young artifacts when they were published.
if not a.undecided then
  redis.call('HDEL', speaker, 'undecided')
elseif admitted then
  redis.call('HSET', speaker, 'undecided', 1)
end
if a.census then tell_census(a.census.high, 'put', cjson.encode(a.census.vuids)) end
if a.tombstone then tell_tombstone(a.tombstone) end
for _, version in ipairs(a.versions) do tell_version(version) end
for _, one in ipairs(a.void) do tell_void(one) end
for _, artifact in ipairs(a.artifacts) do tell_artifact(artifact) end
for _, failure in ipairs(a.failures) do tell_failure(failure) end
for _, move in ipairs(a.moves) do move_alias(move) end
if admitted and (a.look or a.undecided or #pending_fields > 0) then look_again(1) end
-- Lists are made from the index once all speakers have been admitted. One that is admitted later, because its version landed
-- late or its facts could not be read, is missing on the lists that were made in between.
if admitted and mark('live') > 0 and redis.call('GET', 'sr:complete') == epoch_text then publish('voice.admitted', {}) end
return admitted and 1 or 0
