-- Changes the record of a job that has not finished. ARGV: job, state, fields, and where its flight ends with it:
-- vuid, profile, claimed -> 1 done, 0 it has finished or is gone
local state = redis.call('HGET', job_key(a.job), 'state')
if a.vuid then
  local field = flight_of(a.vuid, a.profile, a.claimed)
  if string.match(redis.call('HGET', speaker, field) or '', '^[^:]*') == a.job then forget_flight(field) end
end
if state ~= 'queued' and state ~= 'processing' then return 0 end
if a.state == 'queued' or a.state == 'processing' then
  move_job(a.job, a.state, a.fields)
else
  finish_job(a.job, a.state, a.fields)
end
return 1
