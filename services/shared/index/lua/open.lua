-- Begins an index on this server, unless there is one already. Needs no prelude. KEYS: boot
-- ARGV: what boot begins with if this run of the server has our index, '/' and the bucket's identity and '/', now, the last
-- epoch the caller knows of (or 0), the caller's layout -> what boot holds; error TAKEN: it is the index of another bucket,
-- NEWER {layout}: of a higher layout
local present, known = redis.call('GET', KEYS[1]), tonumber(ARGV[4])
local is_ours = present and string.sub(present, 1, #ARGV[1]) == ARGV[1]
-- An older epoch than the caller knows was brought back: from a dump, into the same run of the server.
if is_ours and tonumber(string.match(present, '%d+$')) >= known then return present end
-- Two registries would take the server from each other with every call.
local _, bucket_ends = string.find(present or '', ARGV[2], 1, true)
if present and not bucket_ends then return redis.error_reply('TAKEN') end
-- So would two releases. The older one gives way, also where the server has lost the index since.
local layout = present and string.match(present, '^%d+', bucket_ends + 1)
if layout and tonumber(layout) > tonumber(ARGV[5]) then return redis.error_reply('NEWER ' .. layout) end
-- Every place from now on is behind the clock, and so behind everything that was reserved before the loss. That rests on:
-- 1. Of one speaker an index gives out fewer than 100 places a second.
-- 2. The caller knows the last epoch: from the bucket, if it has just started (`epochs`).
-- 3. A last epoch more than ten seconds ahead of the clock means that the clock was set back, and then one speaker was given
--    fewer than 100000 places in that index. A clock that was set back to the very seconds in which the last index was begun
--    looks like a loss right after that: of a speaker that was given 100 places since, one still on its way could be given again.
local last = math.max(tonumber(redis.call('GET', 'sr:base') or '0'), known)
-- It stays near the clock, for a caller that does not know the last epoch: losses that come faster than clocks agree take it
-- ahead by no more than a second each.
local clock = math.floor(tonumber(ARGV[3])) * 100
local step = last > clock + 1000 and 100000 or 100
local epoch = string.format('%.0f', math.max(clock, last + step))
redis.call('SET', 'sr:base', epoch)
redis.call('DEL', 'sr:complete', 'sr:profiles')
redis.call('SET', KEYS[1], ARGV[1] .. epoch)
return ARGV[1] .. epoch
