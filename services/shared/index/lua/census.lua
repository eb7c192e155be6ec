-- Takes the census of a speaker: decides which of the versions that were reserved before this index was begun count. It is
-- decided once, before the first upload. Versions that land later do not exist, and their numbers are free.
-- ARGV: put (high of the census whose fact is in the bucket by now)
-- -> {high, JSON of vuids}: the census whose fact has to be put; nothing: there is nothing to put
local high, state, vuids = census()
if a.put then
  if a.put == high then redis.call('HSET', speaker, 'census', string.format('%.0f:put:%s', high, vuids)) end
  return false
end
if state == 'pending' then return {string.format('%.0f', high), vuids} end
if not census_due() then return false end
local trouble = expect_readable() -- an unreadable version would be left out for ever
if trouble then return trouble end
high = math.max(epoch, mark('seq'))
local counted = {}
for _, field in ipairs(redis.call('HKEYS', speaker)) do
  local vuid = string.match(field, '^v:(.+)$')
  if vuid then counted[#counted + 1] = vuid end
end
table.sort(counted)
vuids = #counted > 0 and cjson.encode(counted) or '[]'
tell_census(high, 'pending', vuids)
look_again(10)
return {string.format('%.0f', high), vuids}
