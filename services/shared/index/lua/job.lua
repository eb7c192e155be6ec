-- Changes the record of an unfinished job. ARGV: job, state, fields; if its pending extraction ends too: vuid, profile, claimed
-- -> 1; 0: the job has finished or is gone
local state = redis.call('HGET', job_key(a.job), 'state')
if a.vuid then
  local field = pending_field(a.vuid, a.profile, a.claimed)
  if string.match(redis.call('HGET', speaker, field) or '', '^[^:]*') == a.job then forget_pending(field) end
end
if state ~= 'queued' and state ~= 'processing' then return 0 end
if a.state == 'queued' or a.state == 'processing' then
  move_job(a.job, a.state, a.fields)
else
  finish_job(a.job, a.state, a.fields)
end
return 1
