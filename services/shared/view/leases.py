"""Leases on the event stream: a process that holds one may answer reads from memory without serving old data.

A process that has applied all events may answer from memory until its lease runs out. A change that takes
something away from readers is acknowledged only after `settle`. By then every process has applied the event
of the change, or its lease has expired. A lease is not renewed before its process has applied the last such
event, so nothing depends on the clocks of two machines: after `WAIT_SECONDS`, every lease that a process
without the event held has expired. (After Gray and Cheriton, "Leases: an efficient fault-tolerant mechanism
for distributed file cache consistency", 1989.)
"""

from contextlib import suppress
from enum import StrEnum
from typing import Final

from services.shared.model.clock import Clock
from services.shared.view.generation import Generation
from services.shared.view.keys import events_key, leases_key, taken_key
from speaker_registry.errors import Unavailable

LEASE_SECONDS: Final = 1.0
"""The length of a lease: a process may answer from memory for this long after it asked for the lease."""
WAIT_SECONDS: Final = 1.1
"""A change that is not applied everywhere is acknowledged after this time. It is longer than a lease, because
the clocks of two machines do not run at exactly the same speed.
"""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.001, 0.02
"""The pause between two checks of the leases grows from the first value to the second."""


class Renewal(StrEnum):
    """The answer to a request for a lease."""

    GRANTED = "granted"
    BEHIND = "behind"
    """The process has to apply further events first."""
    TRIMMED = "trimmed"
    """The stream has dropped events that the process may not have seen."""


class Leases:
    """The leases of all processes that use a view."""

    def __init__(self, generation: Generation, clock: Clock) -> None:
        self._generation = generation
        self._clock = clock

    def renew(self, generation: str, process: str, applied: str, before: str) -> Renewal:
        """Ask for a lease of `LEASE_SECONDS`, counted from before this call.

        Args:
            generation: the generation whose events the process has applied.
            process: the id of the process.
            applied: the id of the last event that the process has applied.
            before: the value of `applied` in the last call, or the position at which the process began to
                follow.

        Raises:
            ViewAway: the generation is not in use any more.
            Unavailable: Redis cannot be reached. The lease may have been renewed.
        """
        keys = [leases_key(generation), taken_key(generation), events_key(generation)]
        return Renewal(str(self._generation.call("renew", generation, keys, [process, applied, before])))

    def end(self, process: str) -> None:
        """Give up the lease of a process that stops answering. Raises `ViewAway` or `Unavailable`."""
        self._generation.read(lambda pipeline, generation: pipeline.hdel(leases_key(generation), process))

    def settle(self) -> None:
        """Wait until no process answers from memory with data from before the last change.

        Call this after the change and before it is acknowledged. It returns at once if no process has a lease
        or all have applied the event of the change, and after `WAIT_SECONDS` in any case. It never fails:
        even if Redis cannot be reached, no lease is renewed before its process has applied the event.
        """
        deadline, pause, event = self._clock.monotonic() + WAIT_SECONDS, _FIRST_PAUSE_SECONDS, ""
        while self._clock.monotonic() < deadline:
            found = self._behind(event)
            if found is None:  # the leases are unknown, so all have to expire
                break
            event, count = found
            if not count:
                return
            self._clock.sleep(min(pause, max(0.0, deadline - self._clock.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._clock.sleep(max(0.0, deadline - self._clock.monotonic()))
        if event:  # so that these leases do not delay the next change
            self._behind(event, end=True)

    def _behind(self, event: str, *, end: bool = False) -> tuple[str, int] | None:
        """Return the event to wait for, and the number of processes with a lease that have not applied it.

        Returns None if Redis does not answer, or if the generation is so young that leases of the previous
        one may still be valid.
        """
        with suppress(Unavailable):
            generation = self._generation.for_reading()
            if self._generation.is_younger_than(WAIT_SECONDS):
                return None
            keys = [leases_key(generation), taken_key(generation)]
            found, count = self._generation.call("behind", generation, keys, [event, int(end)])
            return str(found), int(count)
        return None
