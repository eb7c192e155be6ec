"""Leases on the event stream, by which processes may answer reads from memory and stay exact.

A process that has applied all events may answer from memory until its lease runs out. A change that takes
something away from readers is acknowledged only after `settle`: by then every process has applied its event,
or has no lease any more. A lease is not renewed before its process has applied the last such event, so
nothing depends on the clocks of two machines: whoever waits for `WAIT_SECONDS` has waited for every lease.
(After Gray and Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache
consistency", 1989.)
"""

import json
from enum import StrEnum
from typing import Final, cast

from services.shared.index.gate import BOOT, Gate
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.speaker_index import EVENTS
from services.shared.model.clock import Clock
from speaker_registry.errors import Unavailable

LEASE_SECONDS: Final = 1.0
"""A process may answer from memory for this long after it asked for its lease."""
WAIT_SECONDS: Final = 1.1
"""A change that is not applied everywhere is acknowledged after this time. It is longer than a lease, because
the clocks of two machines do not run at exactly the same speed.
"""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.001, 0.02
"""The pause between two looks at the leases grows from the first to the longest."""

_LEASES = "sr:leases"
"""Hash: id of a process -> the last event that it had applied when its lease was renewed."""
TAKEN = "sr:taken"
"""This key holds the id of the last event that took something away from readers."""
_YOUNG = "sr:young"
"""This key exists while leases that were granted by an index before this one may still last."""

_AFTER = """
local function after(one, other)
  local seconds, number = string.match(one, '^(%d+)-?(%d*)$')
  local others, other_number = string.match(other, '^(%d+)-?(%d*)$')
  if seconds ~= others then return tonumber(seconds) > tonumber(others) end
  return (tonumber(number) or 0) > (tonumber(other_number) or 0)
end
"""
_RENEW = f"""{_AFTER}
-- KEYS: boot, leases, taken, events. ARGV: the content of boot that the process trusts, its id, the last
-- event that it has applied, the last event that it had applied when it asked before
-- -> granted, behind, gate or trimmed: see `Renewal`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'gate' end
local oldest = redis.call('XRANGE', KEYS[4], '-', '+', 'COUNT', 1)[1]
if oldest and after(oldest[1], ARGV[4]) then return 'trimmed' end
if after(redis.call('GET', KEYS[3]) or '0-0', ARGV[3]) then return 'behind' end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 'granted'
"""
_BEHIND = f"""{_AFTER}
-- KEYS: boot, leases, taken, young. ARGV: the content of boot that the process trusts; an event, or nothing
-- for the last one that took something away; 1 to end the leases that are behind it
-- -> the event, and how many leases were behind it; nothing: leases of another index may not have run out yet
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('EXISTS', KEYS[4]) == 1 then return false end
local event = ARGV[2] ~= '' and ARGV[2] or redis.call('GET', KEYS[3]) or '0-0'
local all, behind = redis.call('HGETALL', KEYS[2]), 0
for i = 1, #all, 2 do
  if after(event, all[i + 1]) then
    behind = behind + 1
    if ARGV[3] == '1' then redis.call('HDEL', KEYS[2], all[i]) end
  end
end
return {{event, behind}}
"""
_TELL = """
-- KEYS: events, taken. ARGV: the event as JSON
redis.call('SET', KEYS[2], redis.call('XADD', KEYS[1], 'MAXLEN', '~', '50000', '*', 'd', ARGV[1]))
"""


class Renewal(StrEnum):
    """The answer to a request for a lease."""

    GRANTED = "granted"
    BEHIND = "behind"
    """The process has to apply further events first."""
    GATE = "gate"
    """The index is another one than the process trusts."""
    TRIMMED = "trimmed"
    """The stream has dropped events that the process may not have seen."""


class Leases:
    """The leases of all processes that share an index.

    Args:
        index: the index whose events the processes follow.
        clock: measures how long a change has waited.
    """

    def __init__(self, index: Gate, clock: Clock) -> None:
        self._index = index
        self._clock = clock
        self._renew = index.ungated.register_script(_RENEW)
        self._behind = index.ungated.register_script(_BEHIND)
        self._tell = index.ungated.register_script(_TELL)

    def renew(self, stamp: str, process: str, applied: str, before: str) -> Renewal:
        """Ask for a lease of `LEASE_SECONDS`, counted from before this call.

        Args:
            stamp: the index whose events the process has applied.
            process: the id of the process.
            applied: the id of the last event that the process has applied.
            before: what `applied` was at the last call, or the position at which the process began to follow.

        Raises:
            Unavailable: Redis cannot be reached. The lease may have been renewed.
        """
        with unavailable_without_redis():
            keys = [BOOT, _LEASES, TAKEN, EVENTS]
            return Renewal(str(self._renew(keys=keys, args=[stamp, process, applied, before])))

    def end(self, process: str) -> None:
        """Give up the lease of a process that answers nothing more. Raises `Unavailable`."""
        with unavailable_without_redis():
            self._index.ungated.hdel(_LEASES, process)

    def settle(self) -> None:
        """Wait until no process answers from memory what was right before the last change.

        Call this after the change and before it is acknowledged. It returns at once if no process has a lease
        or all have applied the event of the change, and after `WAIT_SECONDS` in any case. It never fails:
        while Redis cannot be reached, no lease is renewed that lacks the event.
        """
        began, pause, event = self._clock.monotonic(), _FIRST_PAUSE_SECONDS, ""
        deadline = began + WAIT_SECONDS
        while self._clock.monotonic() < deadline:
            event, settled = self._look(event)
            if settled:
                return
            self._clock.sleep(min(pause, max(0.0, deadline - self._clock.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._end_behind(event)

    def _look(self, event: str) -> tuple[str, bool]:
        """Return the event that is waited for, and whether every process with a lease has applied it."""
        found = self._read_behind(event)
        if found is None:
            return event, False
        event, behind = found
        return event, behind == 0

    def _end_behind(self, event: str) -> None:
        """End the leases that have run out, so that the next change does not wait for them."""
        if event:
            self._read_behind(event, end=True)

    def _read_behind(self, event: str, *, end: bool = False) -> tuple[str, int] | None:
        """Return the event and the number of leases behind it; None if Redis cannot tell now."""
        try:
            with unavailable_without_redis():
                arguments = [self._index.stamp, event, "1" if end else ""]
                found = self._behind(keys=[BOOT, _LEASES, TAKEN, _YOUNG], args=arguments)
        except Unavailable:
            return None
        return cast(tuple[str, int], tuple(found)) if found is not None else None

    def tell_all(self, kind: str) -> None:
        """Add an event that is about no speaker to the stream. Raises `Unavailable`."""
        with unavailable_without_redis():
            self._tell(keys=[EVENTS, TAKEN], args=[event_of_all(kind, self._clock)])


def event_of_all(kind: str, clock: Clock, **fields: str) -> str:
    """Return the JSON of an event that takes something away, and is about no speaker."""
    return json.dumps({"type": kind, "speaker": "", "at": clock.now(), "takes": True, **fields})
