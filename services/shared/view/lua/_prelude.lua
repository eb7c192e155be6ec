-- This text is put before each script. KEYS[1]: the stamp. ARGV[1]: the stamp that the caller trusts.
-- Error: OVER: another generation has begun here, or the server has lost the one that the caller trusts.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('OVER') end
-- Moves a job of a namespace to the sets of another state. jobs: the key of all jobs of the namespace. record: the key of the
-- job's record. at: the time in seconds.
local function move_job(jobs, record, id, state, ended, at)
  local before = redis.call('HMGET', record, 'state', 'created_at', 'profile')
  redis.call('HSET', record, 'state', state)
  if ended then redis.call('HSET', record, 'finished_at', at) end
  redis.call('ZREM', jobs .. ':' .. before[1], id)
  redis.call('ZREM', jobs .. ':' .. before[1] .. ':' .. before[3], id)
  redis.call('ZADD', jobs .. ':' .. state, before[2], id)
  redis.call('ZADD', jobs .. ':' .. state .. ':' .. before[3], ended and at or before[2], id)
end
-- Returns whether the event with id `one` comes after the event with id `other` in the stream.
local function after(one, other)
  local ms, number = string.match(one, '^(%d+)-?(%d*)$')
  local other_ms, other_number = string.match(other, '^(%d+)-?(%d*)$')
  if ms ~= other_ms then return tonumber(ms) > tonumber(other_ms) end
  return (tonumber(number) or 0) > (tonumber(other_number) or 0)
end
