"""Brings the view up to date with a listing of all documents, after a new generation has begun and at
intervals.

Otherwise two faults would never be corrected: an outdated answer of a node of the store, and a commit whose
process died before it updated the view. A document is not read if the view has it under the listed ETag. If
the last generation has it under that ETag, it is copied from there. The listing of a local folder has no
ETags, so inode, size and time of a file are compared instead.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from services.registry_api.maintenance.each_speaker import in_batches, in_parallel, one_ahead
from services.shared.bucket.documents import Base
from services.shared.bucket.layout import documents_prefix, speaker_of
from services.shared.bucket.store import Store, StoredObject
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.registry.speakers import Speakers
from services.shared.view.copies import FormerCopy, Held, Packed, packed
from speaker_registry.errors import VoiceDamaged, VoiceUnreadable
from speaker_registry.names import is_namespace, slug_of

log = structlog.get_logger(__name__)

_PORTION = 500
_NAMES = 1000
_SHOWN, _SHOWN_BYTES = 100, 4 * 1024 * 1024
"""Documents are sent to Redis in batches of at most this many. A batch also ends once it has this many
bytes.
"""
CHECK_SECONDS = 10.0
"""A speaker that the view lacked is checked within this time, because Redis may have lost its jobs as well.
"""
_TIMES_READ, _PAUSE_SECONDS = 3, 2.0
"""The number of times that a copy is compared with the bucket, and the pause in between. The copy counts as
contradicting the bucket only if it does so every time, because a node of the store may be outdated.
"""

CheckDue = Callable[[SpeakerDocument], float | None]
"""A function that returns the number of seconds after which housekeeping must check the speaker of a
document, or None if it need not.
"""
CheckSchedule = Callable[[], CheckDue]
"""A function that returns a `CheckDue` for the present state of the profiles. Each portion asks anew."""


def all_soon() -> CheckDue:
    """Schedule a check of every speaker. This is a `CheckSchedule` function."""
    return lambda _: CHECK_SECONDS


@dataclass(frozen=True, slots=True)
class _Outdated:
    """A listed document of which the view may hold another state."""

    speaker_id: SpeakerId
    stored: StoredObject
    former: FormerCopy


@dataclass(frozen=True, slots=True)
class _Read:
    """A document that was read from the bucket or from the last generation. The parsed document is not kept,
    because hundreds of them would slow down the garbage collector.
    """

    of: _Outdated
    packed: Packed | None
    """None if the bucket no longer has the document."""
    check_within: float | None
    """The number of seconds after which the speaker must be checked, or None if it need not."""


@dataclass
class _Outcome:
    """The findings of one rebuild."""

    applied: int = 0
    contradicted: list[SpeakerId] = field(default_factory=list)
    """Speakers whose copy in the view cannot be an earlier state of the document in the bucket."""


def rebuild(
    store: Store,
    speakers: Speakers,
    *,
    schedule: CheckSchedule = all_soon,
    put_back: Callable[[], list[str]] = list,
    threads: int = 1,
    between: Callable[[], object] = lambda: None,
) -> int:
    """Apply every document that the view lacks or holds in another state. Returns their number.

    The view is complete after that. A voice whose document cannot be understood is left out and reported. If
    the view contradicts the bucket, because the bucket was restored from a backup, a new generation begins,
    and the next rebuild fills it.

    Args:
        schedule: decides which speakers housekeeping has to check.
        put_back: returns the profiles of which the view has a newer document than the bucket.
        threads: the number of documents that are read from a remote store at a time. If it is 1, the calling
            thread does all the work. Otherwise another thread reads while this one waits for Redis.
        between: called between the steps. An exception that it raises ends the rebuild.

    Raises `Unavailable` if the bucket or Redis stops answering. The view is then as complete as it was
    before.
    """
    generation, outcome = speakers.generation.for_reading(), _Outcome()
    for namespace in filter(is_namespace, store.folders("")):
        listed = {
            speaker_id: stored
            for stored in store.list(documents_prefix(namespace)).objects
            if (speaker_id := speaker_of(stored.key))
        }
        for portion in in_batches(iter(listed.items()), _PORTION):
            read = partial(_read, speakers, check_due=schedule())
            outdated = _outdated(speakers, dict(portion))
            reads = in_parallel(read, outdated, 1 if store.is_local else threads)
            batches = _together(reads)
            for together in batches if threads == 1 else one_ahead(batches):
                kept = _show(speakers, generation, together)
                outcome.applied += len(together)
                outcome.contradicted += [one for one in kept if _contradicts(speakers, one)]
            between()
        outcome.contradicted += _unlisted(speakers, namespace, listed)
    contradicted, profiles = _lasting_contradictions(speakers, outcome.contradicted, put_back)
    if contradicted or profiles:
        log.error("bucket.restored", speakers=len(contradicted), profiles=profiles)
        speakers.generation.begin_replacement(generation)
    else:
        speakers.view.complete(generation)
    return outcome.applied


def _outdated(speakers: Speakers, portion: dict[SpeakerId, StoredObject]) -> list[_Outdated]:
    """Return the listed documents of which the view may hold another state."""
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
    """Return the text by which the view records that a file held the document with this ETag."""
    return f"{stored.mark} {etag}"


def _read(speakers: Speakers, one: _Outdated, check_due: CheckDue) -> _Read | None:
    """Return the document of a speaker, or None if it cannot be understood."""
    try:
        base, document = _of_former(speakers, one) or _of_bucket(speakers, one)
    except (VoiceDamaged, VoiceUnreadable) as error:
        log.error("document.left_out", speaker=str(one.speaker_id), reason=error.message)
        return None
    if base.etag is None or base.body is None:
        return _Read(one, None, None)
    held = Held(one.speaker_id, document, base.etag, base.body)
    return _Read(one, packed(held), check_due(document))


def _together(reads: Iterable[_Read | None]) -> Iterator[list[_Read]]:
    """Yield batches of documents, each of which is sent to Redis in one round trip."""
    together, size = list[_Read](), 0
    for read in reads:
        if read is None:
            continue
        together.append(read)
        size += len(read.packed.body) if read.packed else 0
        if len(together) == _SHOWN or size >= _SHOWN_BYTES:
            yield together
            together, size = [], 0
    if together:
        yield together


def _show(speakers: Speakers, generation: str, together: Sequence[_Read]) -> list[SpeakerId]:
    """Update the copies of some speakers in the view.

    Returns the speakers whose copy may contradict the bucket: the view had a copy that is at least as new, or
    the listed document is gone. The checks are requested first and the marks are stored last, so that a
    rebuild that ends in between is repeated.
    """
    missing = [read.of.speaker_id for read in together if read.packed is None]
    found = [read.packed for read in together if read.packed is not None]
    if not found:
        return missing
    due = ((read.of.speaker_id, read.check_within) for read in together)
    if within := {speaker_id: seconds for speaker_id, seconds in due if seconds is not None}:
        speakers.agenda.check_within(within)
    kept = speakers.documents.show_each(found, generation)
    marks = {
        read.of.speaker_id: _mark(read.of.stored, read.packed.etag)
        for read in together
        if read.packed is not None and read.of.stored.mark is not None
    }
    if marks:
        speakers.view.put_marks(marks)
    return missing + kept


def _of_bucket(speakers: Speakers, one: _Outdated) -> tuple[Base, SpeakerDocument]:
    return _parsed(speakers, one, speakers.documents.read(one.speaker_id))


def _of_former(speakers: Speakers, one: _Outdated) -> tuple[Base, SpeakerDocument] | None:
    """Return the copy of the last generation if it is the listed document, and not damaged in Redis."""
    former = one.former
    if former.body is None or not _is_as_listed(one.stored, former.etag, former.mark):
        return None
    with suppress(VoiceDamaged):
        return _parsed(speakers, one, Base(former.body, former.etag, former.revision))
    return None


def _parsed(speakers: Speakers, one: _Outdated, base: Base) -> tuple[Base, SpeakerDocument]:
    # Each document is needed once, so it does not displace documents in the cache that requests need. It is
    # not taken from the cache either, because its body is applied to the view.
    return base, speakers.documents.parse(one.speaker_id, base, keep=False)


def _contradicts(speakers: Speakers, speaker_id: SpeakerId) -> bool:
    """Return whether the view has a copy that cannot be an earlier state of the bucket's document."""
    base = speakers.documents.read(speaker_id)
    [copy] = speakers.view.get([speaker_id], {})
    return copy.etag is not None and copy.etag != base.etag and base.revision <= (copy.revision or 0)


def _unlisted(speakers: Speakers, namespace: str, listed: dict[SpeakerId, StoredObject]) -> list[SpeakerId]:
    """Return the live speakers of the view that a listing lacks and that contradict the bucket."""
    found, after = list[SpeakerId](), ""
    while names := speakers.view.names(namespace, after=after, limit=_NAMES):
        ids = (SpeakerId(namespace, slug_of(name)) for name in names)
        found += [one for one in ids if one not in listed]
        after = names[-1]
    return [one for one in found if _contradicts(speakers, one)]


def _lasting_contradictions(
    speakers: Speakers, contradicted: list[SpeakerId], put_back: Callable[[], list[str]]
) -> tuple[list[SpeakerId], list[str]]:
    """Return the speakers and the profiles of which the view contradicts the bucket each time that the two
    are compared.
    """
    profiles = put_back()
    for _ in range(_TIMES_READ):
        if not contradicted and not profiles:
            break
        speakers.clock.sleep(_PAUSE_SECONDS)
        contradicted = [one for one in contradicted if _contradicts(speakers, one)]
        profiles = [one for one in put_back() if one in profiles]
    return contradicted, profiles
