-- Puts an artifact in force. ARGV: vuid, base, build, winner, record, profile, fingerprint (of the artifact); for a job: job,
-- claimed (fingerprint of the claim); promotion (an alias move, as in apply_alias, that takes effect at the same moment);
-- alone (token of the only call that may have begun to publish)
-- -> the winner in force; 'dead': the version is dead, or the artifact's bytes were lost since
-- Errors: RIVALS, DAMAGED, UNREADABLE.
local winner = tell_artifact(a, a.alone)
if not winner then return redis.error_reply('RIVALS') end
if winner == 'dead' then return expect_readable() or 'dead' end
if winner == 'void' then
  if a.job then land(pending_field(a.vuid, a.profile, a.claimed), a.job, 'superseded', {}) end
  return 'dead'
end
if a.promotion then move_alias(a.promotion) end
if a.job then land(pending_field(a.vuid, a.profile, a.claimed), a.job, 'succeeded', {stage = 'done', done = a.stages}) end
return winner
