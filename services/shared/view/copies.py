"""The copy of each document in Redis, with the names, counts and digests of each namespace, and the events.

Copies may be lost, rolled back or behind at any time, and no write depends on them. Within a generation a
copy never goes back. The documents in the bucket decide everything about a speaker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

from pydantic_core import to_json
from redis.client import Pipeline

from services.shared.model.document import Counts, SpeakerDocument
from services.shared.model.events import ADMITTED, SpeakerEvent, events_between
from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.view.away import ViewAway
from services.shared.view.generation import Generation, milliseconds
from services.shared.view.keys import (
    FORMER,
    complete_key,
    copy_key,
    copy_prefix,
    counts_key,
    digests_key,
    events_key,
    generation_of,
    marks_key,
    names_key,
    open_jobs_key,
    pinned_key,
    reservations_key,
    taken_key,
)
from services.shared.view.open_jobs import parse_open_jobs
from services.shared.view.redis_access import unavailable_without_redis
from speaker_registry.artifact import canonical_json

NO_DOCUMENT = SpeakerDocument()
_SCANNED, _FORGOTTEN = 1000, 500
"""The numbers of keys that are scanned, and removed, at a time. Meanwhile Redis answers no other command."""
_RESERVED_SECONDS = 60
"""A reservation counts for this long if its process died. No registration takes as long."""
_COUNTED = [field.name for field in fields(Counts)]
"""The names of the counts. The scripts get them as arguments, so that only `Counts` lists them."""
_APPLIED = "applied"
_ADMITS = canonical_json(["what", ADMITTED])
"""The fields of the single event for all speakers that are admitted together."""
_TRIES = 20
"""Largest number of times that events are computed because another process applied a revision meanwhile."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The view's copy of one speaker's document."""

    revision: int | None = None
    """None if the view lacks the speaker. The bucket may have a document of the speaker nevertheless."""
    etag: str | None = None
    body: bytes | None = None
    """None if the caller already has this document, or if the view lacks the speaker."""
    open_jobs: tuple[OpenJob, ...] = ()


@dataclass(frozen=True, slots=True)
class FormerCopy:
    """The copy of one speaker's document in an earlier generation."""

    revision: int = 0
    etag: str | None = None
    body: bytes | None = None
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A document as the bucket holds it."""

    speaker_id: SpeakerId
    document: SpeakerDocument
    etag: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Packed:
    """A document of the bucket as it is sent to Redis. It takes less memory than the parsed document."""

    speaker_id: SpeakerId
    etag: str
    body: bytes
    arguments: bytes
    """The JSON object that describes the document to the script `apply`."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The ages in seconds of the first and the last listing that a generation applied."""

    first: float
    last: float


class ViewIncomplete(ViewAway):
    """The view does not hold every speaker yet, so it cannot list them."""

    def __init__(self) -> None:
        super().__init__("The list of voices is being rebuilt; try again shortly.")


class SpeakerView:
    """The copies of all documents, in the generation in use."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def get(self, speaker_ids: Sequence[SpeakerId], known: Mapping[SpeakerId, str]) -> list[Copy]:
        """Return the copies of several speakers with their open jobs.

        Args:
            known: the ETags of the documents that the caller has. These documents are not sent.

        Raises:
            ViewAway, Unavailable: the view cannot be read now.
        """
        copies = self._heads(speaker_ids)
        asked = [
            place
            for place, (one, copy) in enumerate(zip(speaker_ids, copies, strict=True))
            if copy.revision is not None and known.get(one) != copy.etag
        ]
        if asked:
            found = self._documents([speaker_ids[place] for place in asked])
            for place, (rev, etag, body) in zip(asked, found, strict=True):
                jobs = copies[place].open_jobs
                copies[place] = Copy(int(rev), etag, body.encode(), jobs) if rev else Copy()
        return copies

    def apply(self, held: Held, *, generation: str, base: SpeakerDocument = NO_DOCUMENT) -> bool:
        """Update the copy to a document that the bucket holds, with names, counts, digests and events.

        Returns False if the copy is at least as new, and is therefore kept. Raises `ViewAway` if the
        generation has ended, or `Unavailable`.

        Args:
            base: the document that the copy probably holds. Events describe the changes from the actual copy.
                If the view lacks the speaker, `base` is applied first, so that listeners receive events for
                the later changes.
        """
        for _ in range(_TRIES):
            [answer] = self._apply([packed(held, base)], generation)
            if isinstance(answer, str):
                return answer == _APPLIED
            [stored] = answer
            if stored:
                base = SpeakerDocument.parse(stored.encode())
            else:
                self.apply(Held(held.speaker_id, base, "", base.to_bytes()), generation=generation)
        raise AssertionError("each try meets a higher revision, so the document's own one is reached")

    def apply_each(self, found: Sequence[Packed], *, generation: str) -> list[SpeakerId]:
        """Update several copies of one namespace as `apply` does, in one round trip if the view lacks the
        speakers. Returns the speakers whose copies were at least as new.
        """
        answers = zip(found, self._apply(found, generation), strict=True)
        return [
            one.speaker_id
            for one, answer in answers
            if answer != _APPLIED and (isinstance(answer, str) or not self._apply_later(one, generation))
        ]

    def _apply_later(self, one: Packed, generation: str) -> bool:
        """Update a copy that the view had, so that the events are other ones than those of `one`."""
        held = Held(one.speaker_id, SpeakerDocument.parse(one.body), one.etag, one.body)
        return self.apply(held, generation=generation)

    def _apply(self, found: Sequence[Packed], generation: str) -> list[Any]:
        """Run the script once for several copies."""
        described = b"[" + b",".join(one.arguments for one in found) + b"]"
        bodies = b"".join(one.body for one in found)  # one argument, because each is sent by itself
        answers: list[Any] = self._generation.call(
            "apply", generation, _keys(generation, found), [described, bodies, _ADMITS, *_COUNTED]
        )
        return answers

    def names(self, namespace: str, *, after: str = "", limit: int, pinned: bool = False) -> list[str]:
        """Return the keys of live speakers that come after a key, in order. Raises the same errors as
        `get`.

        Args:
            pinned: return the keys of pinned speakers only. Some of these speakers may no longer be pinned.
        """
        start, key_of = f"({after}" if after else "-", pinned_key if pinned else names_key
        [found] = self._generation.read(
            lambda pipeline, generation: pipeline.zrangebylex(
                key_of(generation, namespace), start, "+", 0, limit
            )
        )
        return list(found)

    def usage(self, namespace: str) -> Counts:
        """Return the usage of a namespace. Raises the same errors as `get`."""
        [found] = self._generation.read(
            lambda pipeline, generation: pipeline.hmget(counts_key(generation, namespace), _COUNTED)
        )
        return _counts(found)

    def reserve(self, speaker_id: SpeakerId, token: str) -> Counts:
        """Reserve a voice that is about to be registered. While the voice is not live, it counts towards the
        usage until `release` is called for each of its reservations.

        Returns the usage of its namespace, including other voices that are reserved. Raises the same errors
        as `get`.

        Args:
            token: identifies this reservation among those of the same voice.
        """
        generation, namespace = self._generation.for_reading(), speaker_id.namespace
        others, *found = self._generation.call(
            "reserve",
            generation,
            [
                reservations_key(generation, namespace),
                counts_key(generation, namespace),
                copy_prefix(generation),
            ],
            [str(speaker_id), token, _RESERVED_SECONDS * 1000, *_COUNTED],
        )
        counts = _counts(found)
        return replace(counts, voices=counts.voices + int(others))

    def release(self, speaker_id: SpeakerId, token: str) -> None:
        """Remove the reservation that was made with this token. Raises the same errors as `get`."""
        self._generation.read(
            lambda pipeline, generation: pipeline.zrem(
                reservations_key(generation, speaker_id.namespace), f"{speaker_id} {token}"
            )
        )

    def speaker_with(self, namespace: str, digest: str) -> SpeakerId | None:
        """Return the speaker that has a live version with an artifact of this digest (`sha256:…`).

        Raises:
            ViewIncomplete: the view lacks the artifact, but it also lacks some speakers, which may have it.
        """
        found, complete = self._generation.read(
            lambda pipeline, generation: (
                pipeline.hget(digests_key(generation, namespace), digest),
                pipeline.exists(complete_key(generation)),
            )
        )
        if not found and not complete:
            raise ViewIncomplete
        return SpeakerId.parse(found) if found else None

    @property
    def takes_writes(self) -> bool:
        """Whether Redis took writes when this process last checked."""
        return self._generation.takes_writes

    def is_complete(self) -> bool:
        """Return whether the view holds every speaker. Raises the same errors as `get`."""
        [found] = self._generation.read(
            lambda pipeline, generation: pipeline.exists(complete_key(generation))
        )
        return bool(found)

    def listed(self) -> Listed | None:
        """Return when listings were applied, or None before the first. Raises the same errors as `get`."""
        time, found = self._generation.read(
            lambda pipeline, generation: (pipeline.time(), pipeline.hgetall(complete_key(generation)))
        )
        if not found:
            return None
        now = milliseconds(time) / 1000
        return Listed(now - float(found["first"]), now - float(found["last"]))

    def complete(self, generation: str) -> None:
        """Mark the view as complete: every document in a listing since the generation began has been
        applied.
        """
        self._generation.call("complete", generation, [complete_key(generation)], [])

    def etags(self, speaker_ids: Sequence[SpeakerId]) -> list[str | None]:
        """Return the ETag of each speaker's document in the view, or None if the view lacks the speaker."""
        return self._generation.read(
            lambda pipeline, generation: [
                pipeline.hget(copy_key(generation, one), "etag") for one in speaker_ids
            ]
        )

    def marks(self, speaker_ids: Sequence[SpeakerId]) -> list[str | None]:
        """Return the mark (inode, size and time) that each document had in a listing without ETags when it
        was applied.
        """
        [found] = self._generation.read(
            lambda pipeline, generation: pipeline.hmget(
                marks_key(generation), [str(one) for one in speaker_ids]
            )
        )
        return list(found)

    def put_marks(self, marks: Mapping[SpeakerId, str]) -> None:
        """Store the marks from a listing that was taken before the documents were read."""
        said: dict[Any, Any] = {str(speaker_id): mark for speaker_id, mark in marks.items()}
        self._generation.read(lambda pipeline, generation: pipeline.hset(marks_key(generation), mapping=said))

    def former(self, speaker_ids: Sequence[SpeakerId]) -> list[FormerCopy]:
        """Return each speaker's copy in the last complete generation. It is valid only if a current listing
        has its ETag or mark.
        """
        [former] = self._generation.read(lambda pipeline, _: pipeline.get(FORMER))
        if not former or not speaker_ids:
            return [FormerCopy()] * len(speaker_ids)

        def ask(pipeline: Pipeline, _: str) -> None:
            pipeline.hmget(marks_key(former), [str(one) for one in speaker_ids])
            for speaker_id in speaker_ids:
                pipeline.hmget(copy_key(former, speaker_id), ["rev", "etag", "doc"])

        marks, *copies = self._generation.read(ask)
        return [
            FormerCopy(int(rev), etag, doc.encode(), mark) if rev else FormerCopy()
            for mark, (rev, etag, doc) in zip(marks, copies, strict=True)
        ]

    def forget_others(self, generation: str) -> int:
        """Remove the keys of all other generations. Returns their number.

        Raises `ViewAway` if this generation is not the one in use any more, or `Unavailable`.
        """
        forgotten = 0
        with unavailable_without_redis():
            found = self._generation.redis.scan_iter(match="sr:*", count=_SCANNED)
            old = (key for key in found if (of := generation_of(key)) and of != generation)
            while keys := list(islice(old, _FORGOTTEN)):
                forgotten += self._generation.call("forget", generation, keys, [])
        return forgotten

    def _heads(self, speaker_ids: Sequence[SpeakerId]) -> list[Copy]:
        def ask(pipeline: Pipeline, generation: str) -> None:
            pipeline.time()
            for speaker_id in speaker_ids:
                pipeline.hmget(copy_key(generation, speaker_id), ["rev", "etag"])
                pipeline.hgetall(open_jobs_key(generation, speaker_id))

        time, *found = self._generation.read(ask)
        heads = zip(found[::2], found[1::2], strict=True)
        return [
            Copy(int(rev) if rev else None, etag, None, parse_open_jobs(jobs, milliseconds(time)))
            for (rev, etag), jobs in heads
        ]

    def _documents(self, speaker_ids: Sequence[SpeakerId]) -> list[list[str]]:
        def ask(pipeline: Pipeline, generation: str) -> None:
            for speaker_id in speaker_ids:
                pipeline.hmget(copy_key(generation, speaker_id), ["rev", "etag", "doc"])

        return self._generation.read(ask)


def _counts(found: Sequence[str | None]) -> Counts:
    return Counts(**{name: int(one or 0) for name, one in zip(_COUNTED, found, strict=True)})


def _keys(generation: str, found: Sequence[Packed]) -> list[str]:
    """Return the keys that `apply` works on."""
    [namespace] = {one.speaker_id.namespace for one in found}
    return [
        names_key(generation, namespace),
        counts_key(generation, namespace),
        events_key(generation),
        taken_key(generation),
        digests_key(generation, namespace),
        pinned_key(generation, namespace),
        *(copy_key(generation, one.speaker_id) for one in found),
    ]


def packed(held: Held, base: SpeakerDocument = NO_DOCUMENT) -> Packed:
    """Return what is sent to Redis to update the copy of a document, which probably holds `base`."""
    document, counts = held.document, held.document.counts
    events = events_between(base, document)
    before, after = base.digests, document.digests
    arguments = {
        "speaker": str(held.speaker_id),
        "rev": document.revision,
        "etag": held.etag,
        "life": document.marks.life,
        "key": document.key or "" if document.live else "",
        "pinned": document.live and document.about.pinned,
        "counts": [getattr(counts, name) for name in _COUNTED],
        "base": base.revision,
        "size": len(held.body),
        "went": sorted(before - after),
        "came": sorted(after - before),
        "events": [_fields(event, document.at) for event in events if event.what != ADMITTED],
        "admitted": any(event.what == ADMITTED for event in events),
        "takes": any(event.takes_away for event in events),
    }
    return Packed(held.speaker_id, held.etag, held.body, to_json(arguments))


def _fields(event: SpeakerEvent, at: int) -> list[str]:
    """Return the fields of an event in the stream, as alternating names and values."""
    takes = {"takes": "1"} if event.takes_away else {}
    fields = {"what": event.what, "at": str(at), **takes, **event.fields}
    return [part for field in fields.items() for part in field]
