-- Reads what an answer needs of a speaker, at the same cost for one version and for a thousand: the marks, the aliases, and of
-- the versions the oldest, the newest, those that aliases point to, and the selected ones.
-- ARGV: number, vuid, idempotency (each selects one version); limit, before (the newest versions with smaller numbers),
-- max_bytes (until their records have that many bytes together), made (only versions that have had an artifact)
-- -> the number of live versions, the state of the census, then names and values of fields of the hash
if not known then
  local complete = redis.call('GET', 'sr:complete') == epoch_text
  if not complete or redis.call('EXISTS', speaker) == 1 then return redis.error_reply('ABSENT') end
  return {0, unsettled(a.now) and 'due' or 'settled'} -- the census admits it
end
local _, counted = census()
local state = counted == 'pending' and counted or census_due() and 'due' or 'settled'
local found, seen = {redis.call('ZCARD', order), state}, {}
local function read(fields)
  for i, value in ipairs(redis.call('HMGET', speaker, unpack(fields))) do
    if value then found[#found + 1] = fields[i]; found[#found + 1] = value end
  end
end
local function noted(vuid) return string.gmatch(redis.call('HGET', speaker, 'k:' .. vuid) or '', '%S+') end
local function read_version(vuid)
  if seen[vuid] or not live(vuid) then return end
  seen[vuid] = true
  local fields = {'v:' .. vuid}
  for name in noted(vuid) do fields[#fields + 1] = string.sub(name, 1, 2) .. vuid .. string.sub(name, 2) end
  read(fields)
end
local function read_all(members)
  for _, member in ipairs(members) do read_version(string.match(member, '^%d+:(.+)$')) end
end

read({'seq', 'num', 'at', 'tomb', 'damaged', 'unreadable', 'undecided', 'rdel'})
for field in noted('') do
  read({field})
  local target = string.match(redis.call('HGET', speaker, field) or '', '^%d+:[^:]+:(.+)$')
  if target then read_version(target) end
end
read_all(redis.call('ZRANGE', order, 0, 0))
read_all(redis.call('ZRANGE', order, -1, -1))
if a.number then read_all(redis.call('ZRANGEBYSCORE', order, a.number, a.number, 'LIMIT', 0, 1)) end
if a.vuid then read_version(a.vuid) end
local by_key = a.idempotency and keyed(a.idempotency)
if by_key then
  read_version(by_key)
  found[#found + 1] = 'keyed'; found[#found + 1] = by_key
end
if a.limit then
  local below, wanted, room = a.before and '(' .. a.before or '+inf', a.limit, a.max_bytes or math.huge
  for _, member in ipairs(redis.call('ZREVRANGEBYSCORE', order, below, '-inf', 'LIMIT', 0, a.made and -1 or a.limit)) do
    local vuid = string.match(member, '^%d+:(.+)$')
    if not a.made or string.find(redis.call('HGET', speaker, 'k:' .. vuid) or '', ' r:', 1, true) then
      read_version(vuid)
      wanted, room = wanted - 1, room - redis.call('HSTRLEN', speaker, 'v:' .. vuid)
      if wanted == 0 then break end
      if room <= 0 then
        found[#found + 1] = 'page_end'; found[#found + 1] = redis.call('ZSCORE', order, member)
        break
      end
    end
  end
end
return found
