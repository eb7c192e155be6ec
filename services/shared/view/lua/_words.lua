-- Runs every command that the other scripts use, and changes nothing. An error of Redis is returned if this user must not run
-- one of them, or the server does not have it. Runs without the prelude.
-- KEYS: the words; a key that never exists; a key of RQ, which the user needs rights to as well
-- ARGV: a field of the words that exists
local words, absent = KEYS[1], KEYS[2]
local calls = {
  {'TIME'}, {'EXISTS', absent}, {'GET', absent}, {'SET', absent, '', 'XX'}, {'PEXPIRE', absent, 1}, {'UNLINK', absent},
  {'HGET', absent, ''}, {'HMGET', absent, ''}, {'HGETALL', absent}, {'HDEL', absent, ''}, {'HSETNX', words, ARGV[1], ''},
  {'ZADD', absent, 'XX', 0, ''}, {'ZREM', absent, ''}, {'ZREMRANGEBYSCORE', absent, 0, 0},
  {'ZRANGE', absent, 0, 0}, {'ZREVRANGE', absent, 0, 0}, {'ZSCORE', absent, ''},
  {'XADD', absent, 'NOMKSTREAM', '*', '', ''}, {'XRANGE', absent, '-', '+'},
}
for _, call in ipairs(calls) do redis.call(unpack(call)) end
-- These would change something, or fail in any case.
for call, expected in pairs({[{'HINCRBY', absent, '', ''}] = 'not an integer', [{'XINFO', 'STREAM', absent}] = 'no such key'}) do
  local answer = redis.pcall(unpack(call))
  if not string.find(answer.err, expected) then return answer end
end
return 0
