"""Brings the view up to a listing of all documents: after a new generation began, and now and then.

What a node that was behind showed, and a commit whose process died before it told the view, would otherwise
be wrong for good. A document that the view has as it was listed is not read, and one that the last generation
had so is taken over from there. A local folder's listing has no ETags; there inode, size and time of a file
stand for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from services.registry_api.maintenance.each_speaker import in_batches, in_parallel
from services.shared.bucket.documents import Base
from services.shared.bucket.layout import documents_prefix, speaker_of
from services.shared.bucket.store import Listing, StoredObject
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.registry.speakers import Speakers
from services.shared.view.copies import FormerCopy, Held
from speaker_registry.errors import VoiceDamaged, VoiceUnreadable
from speaker_registry.names import is_namespace, slug_of

log = structlog.get_logger(__name__)

_PORTION = 500
_NAMES = 1000
_SHOWN, _SHOWN_BYTES = 100, 4 * 1024 * 1024
"""The most documents that are sent to Redis at a time, and how many bytes of them are enough."""
LOOK_SECONDS = 10.0
"""A speaker that the view lacked is looked at within this, because Redis may have lost its jobs as well."""
_TIMES_READ, _PAUSE_SECONDS = 3, 2.0
"""A copy contradicts the bucket only if that shows each time, because a node of the store may be behind."""

Looks = Callable[[Sequence[SpeakerDocument]], Sequence[float | None]]
"""This returns for each of some documents, which were just read, after how many seconds its speaker has to be
looked at, or None if that is not needed.
"""


def all_soon(documents: Sequence[SpeakerDocument]) -> list[float | None]:
    """Have every speaker looked at. This is a `Looks`."""
    return [LOOK_SECONDS] * len(documents)


class Listed(Protocol):
    """The part of a store that lists."""

    is_local: bool

    def folders(self, prefix: str) -> list[str]: ...

    def list(self, prefix: str) -> Listing: ...


@dataclass(frozen=True, slots=True)
class _Outdated:
    """A document that the view may not hold as it was listed."""

    speaker_id: SpeakerId
    stored: StoredObject
    former: FormerCopy


@dataclass(frozen=True, slots=True)
class _Read:
    """A speaker with its document, as it was read from the bucket or from the last generation."""

    of: _Outdated
    base: Base
    document: SpeakerDocument

    @property
    def held(self) -> Held:
        return Held(self.of.speaker_id, self.document, self.base.etag or "", self.base.body or b"")


@dataclass
class _Outcome:
    """The findings of one rebuild."""

    applied: int = 0
    contradicted: list[SpeakerId] = field(default_factory=list)
    """Speakers of whom the view has a copy that the bucket does not lead to."""


def rebuild(
    store: Listed,
    speakers: Speakers,
    *,
    looks: Looks = all_soon,
    threads: int = 1,
    between: Callable[[], object] = lambda: None,
) -> int:
    """Apply every document that the view lacks or has another one of. Returns how many there were.

    The view is complete after that. A voice whose document cannot be understood is left out and reported.
    If the view contradicts the bucket, because that was restored from a backup, a new generation begins, and
    the next rebuild fills it.

    Args:
        looks: says which speakers housekeeping has to look at.
        between: is called now and then. What it raises ends the rebuild.

    Raises `Unavailable` if the bucket or Redis went away; then the view is as complete as it was.
    """
    generation, outcome = speakers.generation.for_reading(), _Outcome()
    for namespace in filter(is_namespace, store.folders("")):
        listed = {
            speaker_id: stored
            for stored in store.list(documents_prefix(namespace)).objects
            if (speaker_id := speaker_of(stored.key))
        }
        for portion in in_batches(iter(listed.items()), _PORTION):
            read = partial(_read_each, speakers, threads=1 if store.is_local else threads)
            for together in _together(read(_outdated(speakers, dict(portion)))):
                kept = _show(speakers, generation, looks, together)
                outcome.applied += len(together)
                outcome.contradicted += [one for one in kept if _contradicts(speakers, one)]
            between()
        outcome.contradicted += _unlisted(speakers, namespace, listed)
    if _is_restored(speakers, outcome.contradicted):
        log.error("bucket.restored", speakers=len(outcome.contradicted))
        speakers.generation.begin_anew(generation)
    else:
        speakers.view.complete(generation)
    return outcome.applied


def _outdated(speakers: Speakers, portion: dict[SpeakerId, StoredObject]) -> list[_Outdated]:
    """Return the speakers of whom the view may hold another document than the listed one."""
    ids = list(portion)
    has_marks = any(stored.etag is None for stored in portion.values())
    marks = dict(zip(ids, speakers.view.marks(ids) if has_marks else [None] * len(ids), strict=True))
    known = [one for one in ids if portion[one].etag or marks[one]]
    etags = dict(zip(known, speakers.view.etags(known), strict=True))
    found = [one for one in ids if not _is_as_listed(portion[one], etags.get(one), marks[one])]
    former = zip(found, speakers.view.former(found), strict=True)
    return [_Outdated(one, portion[one], copy) for one, copy in former]


def _is_as_listed(stored: StoredObject, etag: str | None, mark: str | None) -> bool:
    if stored.etag is not None:
        return etag == stored.etag
    return etag is not None and stored.mark is not None and mark == _mark(stored, etag)


def _mark(stored: StoredObject, etag: str) -> str:
    """Return the text by which the view remembers that a file held the document with this ETag."""
    return f"{stored.mark} {etag}"


def _read_each(speakers: Speakers, outdated: Iterable[_Outdated], *, threads: int) -> Iterator[_Read]:
    """Yield the speakers with their documents, without those whose documents cannot be understood."""
    for read in in_parallel(partial(_read, speakers), outdated, threads):
        if read is not None:
            yield read


def _read(speakers: Speakers, one: _Outdated) -> _Read | None:
    try:
        return _of_former(speakers, one) or _of_bucket(speakers, one)
    except (VoiceDamaged, VoiceUnreadable) as error:
        log.error("document.left_out", speaker=str(one.speaker_id), reason=error.message)
        return None


def _together(reads: Iterable[_Read]) -> Iterator[list[_Read]]:
    """Yield what is shown to Redis in one round trip: so many documents, and not too many bytes."""
    together, size = list[_Read](), 0
    for read in reads:
        together.append(read)
        size += len(read.base.body or b"")
        if len(together) == _SHOWN or size >= _SHOWN_BYTES:
            yield together
            together, size = [], 0
    if together:
        yield together


def _show(speakers: Speakers, generation: str, looks: Looks, together: Sequence[_Read]) -> list[SpeakerId]:
    """Bring the copies of some speakers up to the bucket.

    Returns those of whom the view may have another copy than that: it was as new, or the listed document is
    not there. The looks are asked for first, and marks are kept last: a rebuild that ends in between is done
    again.
    """
    missing = [read.of.speaker_id for read in together if read.base.etag is None]
    found = [read for read in together if read.base.etag is not None]
    if not found:
        return missing
    needed = zip(found, looks([read.document for read in found]), strict=True)
    if within := {read.of.speaker_id: seconds for read, seconds in needed if seconds is not None}:
        speakers.agenda.look_within(within)
    kept = speakers.documents.show_each([read.held for read in found], generation)
    marked = (read for read in found if read.of.stored.mark is not None)
    if marks := {read.of.speaker_id: _mark(read.of.stored, read.base.etag or "") for read in marked}:
        speakers.view.put_marks(marks)
    return missing + kept


def _of_bucket(speakers: Speakers, one: _Outdated) -> _Read:
    return _parsed(speakers, one, speakers.documents.read(one.speaker_id))


def _of_former(speakers: Speakers, one: _Outdated) -> _Read | None:
    """Return the copy of the last generation if it is the listed document, and not damaged in Redis."""
    former = one.former
    if former.body is None or not _is_as_listed(one.stored, former.etag, former.mark):
        return None
    with suppress(VoiceDamaged):
        return _parsed(speakers, one, Base(former.body, former.etag, former.revision))
    return None


def _parsed(speakers: Speakers, one: _Outdated, base: Base) -> _Read:
    # Each document is needed once, so it is not kept in place of those that requests need. Its body is shown,
    # so it is not taken from memory either.
    document = speakers.documents.parse(one.speaker_id, base, keep=False)
    return _Read(one, Base(base.body, base.etag, base.revision), document)


def _contradicts(speakers: Speakers, speaker_id: SpeakerId) -> bool:
    """Return whether the view has a copy that no change of the bucket's document leads to."""
    base = speakers.documents.read(speaker_id)
    [copy] = speakers.view.get([speaker_id], {})
    return copy.etag is not None and copy.etag != base.etag and base.revision <= (copy.revision or 0)


def _unlisted(speakers: Speakers, namespace: str, listed: dict[SpeakerId, StoredObject]) -> list[SpeakerId]:
    """Return the live speakers of the view that a listing lacks."""
    found, after = list[SpeakerId](), ""
    while names := speakers.view.names(namespace, after=after, limit=_NAMES):
        ids = (SpeakerId(namespace, slug_of(name)) for name in names)
        found += [one for one in ids if one not in listed]
        after = names[-1]
    return [one for one in found if _contradicts(speakers, one)]


def _is_restored(speakers: Speakers, contradicted: list[SpeakerId]) -> bool:
    """Return whether the view contradicts the bucket each time that the two are compared."""
    for _ in range(_TIMES_READ):
        if not contradicted:
            return False
        speakers.clock.sleep(_PAUSE_SECONDS)
        contradicted = [one for one in contradicted if _contradicts(speakers, one)]
    return bool(contradicted)
