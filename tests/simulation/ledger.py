"""Records what clients asked for, what they were told, and what that allows them to see. It knows no index
and no fold. Moments are numbers of events: an action with a smaller number ended before the other began.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.shared.bucket.keys import SpeakerId
from services.shared.index.speaker_index import WINDOW_SECONDS
from services.shared.model.domain import SpeakerVersion

FORGOTTEN_SECONDS = WINDOW_SECONDS + 120
"""The time after which a delete that came to nothing no longer matters. The clocks of two processes may
differ by a minute each.
"""


class Violation(BaseException):
    """A promise was broken."""


@dataclass(eq=False)
class ClientRequest:
    """One request, on its way or over. `outcome`: running, done, refused, failed (may still take effect),
    killed (likewise)."""

    kind: str
    speaker_id: SpeakerId
    began: int
    ended: int | None = None
    outcome: str = "running"
    content: int = 0
    """The number that stands for the clip of an upload."""
    began_at: float = 0.0
    ended_at: float | None = None
    """Seconds of the world's time."""
    stored: bool = False
    """True once the tombstone of a delete was on its way to the bucket, whether or not it arrived."""
    landed: int = 0
    """The time at which the tombstone of a failed delete arrived in the bucket all the same."""

    def over_by(self, moment: int) -> bool:
        return self.ended is not None and max(self.ended, self.landed) < moment

    def came_to_nothing_by(self, seconds: float) -> bool:
        """Return whether this is a delete that ended before it stored anything, so long ago that every
        process knows by this time.
        """
        return not self.stored and self.ended_at is not None and self.ended_at + FORGOTTEN_SECONDS < seconds


@dataclass(frozen=True)
class Acknowledged:
    """A registration was answered `at` this moment with this version, made up for `author` and promised to
    `asker`."""

    version: SpeakerVersion
    at: int
    author: ClientRequest
    asker: ClientRequest


@dataclass
class Ledger:
    requests: list[ClientRequest] = field(default_factory=list)
    authors: dict[str, ClientRequest] = field(default_factory=dict)
    """vuid -> the upload that it was made up for; a repeat of that may be given it as well."""
    acknowledged: dict[str, list[Acknowledged]] = field(default_factory=dict)
    """The acknowledged answers by vuid, in their order."""
    answers: dict[str, Acknowledged] = field(default_factory=dict)
    """Idempotency key -> its last answer."""
    numbered: dict[tuple[SpeakerId, int], SpeakerVersion] = field(default_factory=dict)
    """The version that was acknowledged first under a number of its speaker."""
    moves_acknowledged: dict[SpeakerId, int] = field(default_factory=dict)
    """The seq of the last acknowledged move of each speaker's default."""
    moved_by_hand: set[str] = field(default_factory=set)
    """vuids that somebody tried to make the default."""

    canceled: dict[str, int] = field(default_factory=dict)
    """Id of a job that was said to be canceled -> how often Redis had been lost when that was asked for."""

    def begin(
        self, kind: str, speaker_id: SpeakerId, moment: int, seconds: float, content: int = 0
    ) -> ClientRequest:
        request = ClientRequest(kind, speaker_id, moment, content=content, began_at=seconds)
        self.requests.append(request)
        return request

    def deletes(self, speaker_id: SpeakerId) -> Iterator[ClientRequest]:
        return (one for one in self.requests if one.kind == "delete" and one.speaker_id == speaker_id)

    def settled_at(self, vuid: str) -> int | None:
        """Return the moment from which the place of a version in its speaker's order was certainly taken."""
        author = self.authors[vuid]
        moments = [moment for moment in (author.ended, self._acknowledged_at(vuid)) if moment is not None]
        return min(moments, default=None)

    def _acknowledged_at(self, vuid: str) -> int | None:
        return self.acknowledged[vuid][0].at if vuid in self.acknowledged else None

    def may_be_gone(self, answer: Acknowledged, moment: int) -> bool:
        """Return whether a delete that had not ended when the answered upload began may have taken effect by
        now.
        """
        return any(
            one.began < moment and not one.over_by(answer.asker.began)
            for one in self.deletes(answer.author.speaker_id)
        )

    def must_be_gone(self, vuid: str, moment: int) -> bool:
        """Return whether a delete that began after the version had its place was acknowledged by now."""
        settled = self.settled_at(vuid)
        return settled is not None and any(
            one.outcome == "done" and one.over_by(moment) and one.began > settled
            for one in self.deletes(self.authors[vuid].speaker_id)
        )

    def acknowledge(
        self, key: str | None, version: SpeakerVersion, asker: ClientRequest, moment: int
    ) -> None:
        """A registration was answered with this version."""
        if version.vuid not in self.authors:
            raise Violation(f"{version.vuid} was acknowledged and never asked for")
        answer = Acknowledged(version, moment, self.authors[version.vuid], asker)
        if key is not None:
            self._check_repeat(key, answer)
            self.answers[key] = answer
        promised = self.numbered.setdefault((answer.author.speaker_id, version.number), version)
        if promised.vuid != version.vuid:
            raise Violation(f"number {version.number} is {promised.vuid}, and now {version.vuid}")
        if version.vuid not in self.acknowledged:
            for old, *_ in self.acknowledged.values():
                if old.author.speaker_id == answer.author.speaker_id:
                    _check_order(old, answer)
        self.acknowledged.setdefault(version.vuid, []).append(answer)

    def _check_repeat(self, key: str, answer: Acknowledged) -> None:
        before = self.answers.get(key)
        if before is None or before.version.vuid == answer.version.vuid:
            return
        # The second version was made up when its author came, though it may be answered much later.
        if not any(
            one.began < answer.at
            and not one.over_by(before.asker.began)
            and not one.came_to_nothing_by(answer.author.began_at)
            for one in self.deletes(answer.author.speaker_id)
        ):
            raise Violation(
                f"key {key} was answered with {before.version.vuid} and now with {answer.version.vuid}"
            )


def _check_order(old: Acknowledged, new: Acknowledged) -> None:
    """Numbers and times of creation rise together, and with the order of what was acknowledged."""
    one, other = old.version.record, new.version.record
    apart = [other.number - one.number, other.created_at - one.created_at, new.version.seq - old.version.seq]
    same_way = all(step > 0 for step in apart) or all(step < 0 for step in apart)
    if not same_way or (old.at < new.author.began and apart[0] < 0):
        raise Violation(
            f"acknowledged versions of {old.author.speaker_id} are out of order: "
            f"{one.vuid} seq {old.version.seq} number {one.number} created {one.created_at}, "
            f"{other.vuid} seq {new.version.seq} number {other.number} "
            f"created {other.created_at}"
        )
