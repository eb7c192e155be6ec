-- Which versions count of those that were reserved before this index was begun. It is written down once, before the first
-- upload: from then on what else lands of them never happened, and its number is free.
-- ARGV: put (high of the census whose fact is in the bucket now) -> {high, JSON of vuids} to be put, or nothing to do
local high, state, vuids = census()
if a.put then
  if a.put == high then redis.call('HSET', speaker, 'census', string.format('%.0f:put:%s', high, vuids)) end
  return false
end
if state == 'pending' then return {string.format('%.0f', high), vuids} end
if not census_due() then return false end
local trouble = expect_readable() -- what cannot be read would be left out for ever
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
