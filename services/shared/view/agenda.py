"""The agenda: the speakers that housekeeping looks at next, and the writes that may still land.

Times are those of Redis' own clock. A write is announced before its bytes are stored. So a process that dies
in the middle leaves something to look at, and a delete that finds nothing knows whether an upload may be on
its way. An announcement leaves when its outcome is known. The age of one does not end it:
`maintenance/settle` first makes a change after which the announced one cannot come any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from services.shared.model.speaker import SpeakerId
from services.shared.view.generation import Generation, milliseconds
from services.shared.view.keys import agenda_key, announcements_key

ANNOUNCED_SECONDS = 30 * 60.0
"""The age at which the outcome of an announced write counts as unknown, so that its speaker is settled."""
_LOOK_SECONDS = 10.0
"""The time after which a speaker is looked at that a write was announced for."""


@dataclass(frozen=True, slots=True)
class Due:
    """A speaker that housekeeping has to look at."""

    speaker_id: SpeakerId
    at: int
    """The time of the look, in ms. It tells whether somebody has asked for another look since."""


class Agenda:
    """Announced writes, and looks that are due. Every method raises `ViewAway` or `Unavailable`."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def announce(self, speaker_id: SpeakerId, token: str, generation: str) -> None:
        """Say that a write to this speaker begins now. If this raises, nothing may be written."""
        self._look_within({speaker_id: _LOOK_SECONDS}, generation)
        self._generation.call("announce", generation, [announcements_key(generation, speaker_id)], [token])

    def withdraw(self, speaker_id: SpeakerId, token: str) -> None:
        """Say that the outcome of an announced write is known."""
        self._generation.read(
            lambda pipeline, generation: pipeline.hdel(announcements_key(generation, speaker_id), token)
        )

    def announced(self, speaker_id: SpeakerId) -> Mapping[str, float]:
        """Return the tokens of writes that may still land, each with its age in seconds."""
        time, found = self._generation.read(
            lambda pipeline, generation: (
                pipeline.time(),
                pipeline.hgetall(announcements_key(generation, speaker_id)),
            )
        )
        return {token: (milliseconds(time) - int(at)) / 1000 for token, at in found.items()}

    def due(self, limit: int) -> list[Due]:
        """Return speakers whose look is due. The one that has been due for longest comes first."""
        time, found = self._generation.read(
            lambda pipeline, generation: (
                pipeline.time(),
                pipeline.zrange(agenda_key(generation), 0, limit - 1, withscores=True),
            )
        )
        return [Due(SpeakerId.parse(text), int(at)) for text, at in found if at <= milliseconds(time)]

    def look_within(self, within: Mapping[SpeakerId, float]) -> None:
        """Have each speaker looked at within so many seconds."""
        self._look_within(within, self._generation.for_reading())

    def _look_within(self, within: Mapping[SpeakerId, float], generation: str) -> None:
        arguments: list[str | int | float] = []
        for speaker_id, seconds in within.items():
            arguments += [str(speaker_id), round(seconds * 1000)]
        self._generation.call("look", generation, [agenda_key(generation)], arguments)

    def looked_at(self, due: Due, *, again_in: float | None) -> None:
        """Take a speaker off, or have it looked at again later. A look that was asked for meanwhile stays."""
        generation = self._generation.for_reading()
        again: str | int = "" if again_in is None else round(again_in * 1000)
        arguments: list[str | int | float] = [str(due.speaker_id), due.at, again]
        self._generation.call("put_off", generation, [agenda_key(generation)], arguments)
