"""The copy of each document in Redis, with the names and counts of each namespace, and the events.

Copies may be lost, rolled back or behind at any time, and no write depends on them. Within a generation a
copy never goes back. The documents in the bucket decide: nothing is decided here about a speaker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis.client import Pipeline

from services.shared.bucket.keys import SpeakerId
from services.shared.model.document import Counts, SpeakerDocument
from services.shared.model.events import events_between
from services.shared.view.generation import Generation

NO_DOCUMENT = SpeakerDocument()
_TRIES = 20
"""The number of times that events are computed again because another process applied a revision meanwhile."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What the view holds of one speaker."""

    revision: int | None = None
    """None if the view does not know the speaker. That proves nothing about the bucket."""
    etag: str | None = None
    body: bytes | None = None
    """None if the caller knows this revision, or if the view does not know the speaker."""


class SpeakerView:
    """The copies of all documents, in the generation in use."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def get(self, speaker_ids: Sequence[SpeakerId], known: Mapping[SpeakerId, int]) -> list[Copy]:
        """Return the copies of several speakers.

        Args:
            known: the revisions that the caller has. Their documents are not sent.

        Raises:
            ViewAway, Unavailable: the view cannot be read now.
        """
        heads = self._fields(speaker_ids, ["rev", "etag"])
        copies = [Copy(int(rev), etag) if rev else Copy() for rev, etag in heads]
        asked = [
            place
            for place, (one, copy) in enumerate(zip(speaker_ids, copies, strict=True))
            if copy.revision is not None and known.get(one) != copy.revision
        ]
        if asked:
            found = self._fields([speaker_ids[place] for place in asked], ["rev", "etag", "doc"])
            for place, (rev, etag, body) in zip(asked, found, strict=True):
                copies[place] = Copy(int(rev), etag, body.encode()) if rev else Copy()
        return copies

    def apply(
        self,
        speaker_id: SpeakerId,
        document: SpeakerDocument,
        etag: str,
        *,
        generation: str,
        base: SpeakerDocument = NO_DOCUMENT,
    ) -> None:
        """Bring the copy up to a document that the bucket holds, with names, counts and events.

        A copy that is as new stays. Raises `ViewAway` if the generation has ended, or `Unavailable`.

        Args:
            base: the document that the copy probably holds. Events start from what it does hold.
        """
        for _ in range(_TRIES):
            answer, *stored = self._generation.call(
                "apply",
                generation,
                self._keys_of(generation, speaker_id),
                _arguments(speaker_id, base, document, etag),
            )
            if answer != "base":
                return
            base = SpeakerDocument.parse(stored[0].encode()) if stored[0] else NO_DOCUMENT
        raise AssertionError("each try meets a higher revision, and this document's is reached at last")

    def names(self, namespace: str, *, after: str = "", limit: int) -> list[str]:
        """Return the keys of live speakers that come after a key, in order. Raises as `get` does."""
        start = f"({after}" if after else "-"
        [found] = self._generation.read(
            lambda pipeline, generation: pipeline.zrangebylex(
                _names_key(generation, namespace), start, "+", 0, limit
            )
        )
        return list(found)

    def usage(self, namespace: str) -> Counts:
        """Return the sums of a namespace. Raises as `get` does."""
        [found] = self._generation.read(
            lambda pipeline, generation: pipeline.hmget(
                _counts_key(generation, namespace), ["voices", "bytes", "text_bytes"]
            )
        )
        voices, size, text_bytes = (int(one or 0) for one in found)
        return Counts(voices=voices, bytes=size, text_bytes=text_bytes)

    def _fields(self, speaker_ids: Sequence[SpeakerId], fields: list[str]) -> list[list[str]]:
        def ask(pipeline: Pipeline, generation: str) -> None:
            for speaker_id in speaker_ids:
                pipeline.hmget(_copy_key(generation, speaker_id), fields)

        return self._generation.read(ask)

    @staticmethod
    def _keys_of(generation: str, speaker_id: SpeakerId) -> list[str]:
        namespace = speaker_id.namespace
        return [
            _copy_key(generation, speaker_id),
            _names_key(generation, namespace),
            _counts_key(generation, namespace),
            events_key(generation),
        ]


def _arguments(
    speaker_id: SpeakerId, base: SpeakerDocument, document: SpeakerDocument, etag: str
) -> list[str | int | float]:
    counts = document.counts
    return [
        document.revision,
        etag,
        document.to_bytes().decode(),
        document.key or "" if document.live else "",
        counts.voices,
        counts.bytes,
        counts.text_bytes,
        base.revision,
        str(speaker_id),
        document.marks.life,
        *events_between(base, document),
    ]


def _copy_key(generation: str, speaker_id: SpeakerId) -> str:
    return f"sr:{generation}:s:{speaker_id}"


def _names_key(generation: str, namespace: str) -> str:
    return f"sr:{generation}:n:{namespace}"


def _counts_key(generation: str, namespace: str) -> str:
    return f"sr:{generation}:c:{namespace}"


def events_key(generation: str) -> str:
    """Return the key of the stream that tells what happened to which speaker."""
    return f"sr:{generation}:events"
