"""The agenda: the speakers that housekeeping checks next, and the writes that may still take effect.

Times are those of Redis' own clock. A write is announced before its bytes are stored. So housekeeping finds
the writes of a process that died, and a delete that finds nothing knows whether an upload may be under way.
An announcement is removed when its outcome is known. It does not expire with time: `maintenance/settle` first
makes a change after which the announced write can no longer succeed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from services.shared.model.speaker import SpeakerId
from services.shared.view.generation import Generation, milliseconds
from services.shared.view.keys import agenda_key, announcements_key

ANNOUNCED_SECONDS = 30 * 60.0
"""The age at which the outcome of an announced write counts as unknown, so that its speaker is settled."""
_CHECK_SECONDS = 10.0
"""Housekeeping checks a speaker this long after a write was announced for it."""


@dataclass(frozen=True, slots=True)
class Due:
    """A speaker that housekeeping has to check."""

    speaker_id: SpeakerId
    at: int
    """The time of the check in ms. It shows whether another check was requested meanwhile."""


class Agenda:
    """Announced writes, and the speakers that are due for a check. Every method raises `ViewAway` or
    `Unavailable`.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def announce(self, speaker_id: SpeakerId, token: str, generation: str) -> None:
        """Announce a write to this speaker. If this raises, nothing may be written."""
        self._check_within({speaker_id: _CHECK_SECONDS}, generation)
        self._generation.call("announce", generation, [announcements_key(generation, speaker_id)], [token])

    def withdraw(self, speaker_id: SpeakerId, token: str) -> None:
        """Remove the announcement of a write whose outcome is known."""
        self._generation.read(
            lambda pipeline, generation: pipeline.hdel(announcements_key(generation, speaker_id), token)
        )

    def announced(self, speaker_id: SpeakerId) -> Mapping[str, float]:
        """Return the tokens of writes that may still take effect, each with its age in seconds."""
        time, found = self._generation.read(
            lambda pipeline, generation: (
                pipeline.time(),
                pipeline.hgetall(announcements_key(generation, speaker_id)),
            )
        )
        return {token: (milliseconds(time) - int(at)) / 1000 for token, at in found.items()}

    def due(self, limit: int) -> list[Due]:
        """Return speakers that are due for a check, the one that has been due for longest first."""
        time, found = self._generation.read(
            lambda pipeline, generation: (
                pipeline.time(),
                pipeline.zrange(agenda_key(generation), 0, limit - 1, withscores=True),
            )
        )
        return [Due(SpeakerId.parse(text), int(at)) for text, at in found if at <= milliseconds(time)]

    def check_within(self, within: Mapping[SpeakerId, float]) -> None:
        """Schedule a check of each speaker within the given number of seconds."""
        self._check_within(within, self._generation.for_reading())

    def _check_within(self, within: Mapping[SpeakerId, float], generation: str) -> None:
        arguments: list[str | int | float] = []
        for speaker_id, seconds in within.items():
            arguments += [str(speaker_id), round(seconds * 1000)]
        self._generation.call("check_within", generation, [agenda_key(generation)], arguments)

    def checked(self, due: Due, *, again_in: float | None) -> None:
        """Remove a checked speaker from the agenda, or schedule its next check. A check that was requested
        meanwhile stays.
        """
        generation = self._generation.for_reading()
        again: str | int = "" if again_in is None else round(again_in * 1000)
        arguments: list[str | int | float] = [str(due.speaker_id), due.at, again]
        self._generation.call("put_off", generation, [agenda_key(generation)], arguments)
