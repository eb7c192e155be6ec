-- Begins an index on this server, unless there is one already. Runs without the prelude. KEYS: boot
-- ARGV: what boot begins with if this run of the server has our index; '/', the bucket's identity and '/'; now; the last epoch
-- that the caller knows of, or 0; the caller's layout
-- -> the content of boot. Errors: TAKEN: the index belongs to another bucket; NEWER {layout}: it has a higher layout.
local present, known = redis.call('GET', KEYS[1]), tonumber(ARGV[4])
local is_ours = present and string.sub(present, 1, #ARGV[1]) == ARGV[1]
-- An epoch older than the caller knows was restored from a dump into the same run of the server.
if is_ours and tonumber(string.match(present, '%d+$')) >= known then return present end
-- Otherwise two registries would take the server from each other with every call.
local _, bucket_ends = string.find(present or '', ARGV[2], 1, true)
if present and not bucket_ends then return redis.error_reply('TAKEN') end
-- Two releases would do the same. The older one gives way, even if the server has lost the index since.
local layout = present and string.match(present, '^%d+', bucket_ends + 1)
if layout and tonumber(layout) > tonumber(ARGV[5]) then return redis.error_reply('NEWER ' .. layout) end
-- Every new place follows the clock's time, and so everything that was reserved before the loss. This relies on three things:
-- 1. An index gives out fewer than 100 places a second for one speaker.
-- 2. The caller knows the last epoch. A process that has just started reads it from the bucket (`epochs`).
-- 3. A last epoch more than ten seconds ahead of the clock means that the clock was set back, and that one speaker was given
--    fewer than 100000 places in that index. A clock that was set back to exactly the seconds in which the last index was begun
--    looks like a loss right after that. If a speaker was given 100 places since, a pending place could be given out again.
local last = math.max(tonumber(redis.call('GET', 'sr:base') or '0'), known)
-- The epoch stays near the clock, for callers that do not know the last epoch. Losses in quick succession move it ahead by no
-- more than a second each.
local clock = math.floor(tonumber(ARGV[3])) * 100
local step = last > clock + 1000 and 100000 or 100
local epoch = string.format('%.0f', math.max(clock, last + step))
redis.call('SET', 'sr:base', epoch)
redis.call('DEL', 'sr:complete', 'sr:profiles')
-- Processes may still have leases that an earlier index granted: see `leases.py`.
if last > 0 then redis.call('SET', 'sr:young', 1, 'PX', 1200) end
redis.call('SET', KEYS[1], ARGV[1] .. epoch)
return ARGV[1] .. epoch
