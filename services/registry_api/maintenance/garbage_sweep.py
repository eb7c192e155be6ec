"""Removes the bytes that a speaker's document does not name. First a change of the document fences their ids,
and then they are deleted.

The success of the change proves that it was based on the current document, and every later change that would
name one of the ids is refused. So an outdated answer of the store never leads to the deletion of a named
object, and a suspended upload never loses its clip.
"""

from collections.abc import Iterator
from datetime import timedelta

import structlog

from services.shared.bucket.layout import bytes_of
from services.shared.bucket.store import Listing
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.model.swept import with_swept
from services.shared.registry.speakers import Speakers
from services.shared.telemetry.metrics import FOREIGN, GARBAGE

log = structlog.get_logger(__name__)

BY = "sweep"
OLD = timedelta(hours=1)
"""Bytes younger than this may belong to a change that is still under way."""


def sweep(
    speakers: Speakers, blobs: StoredBytes, speaker_id: SpeakerId, *, grace: timedelta | None = None
) -> int:
    """Remove the bytes of a speaker that are older than `grace` and that its document does not name.

    The default of `grace` is an hour. Returns the number of removed objects. Raises `VoiceDamaged`,
    `VoiceUnreadable`, `Unavailable`.
    """
    until, listing = speakers.deadline(), blobs.listing(speaker_id)
    there = {one for _, ids in _ids(listing) for one in ids}
    old = list(_ids(listing, older_than=OLD if grace is None else grace))
    FOREIGN.inc(sum(bytes_of(stored.key) is None for stored in listing.objects))

    def fence(document: SpeakerDocument) -> SpeakerDocument:
        unnamed = {one for _, ids in old for one in ids} - document.names_of_bytes
        gone = document.swept.keys() - there
        return with_swept(document, unnamed, gone=gone, now=speakers.now())

    document = speakers.read(speaker_id).document
    if fence(document) is document and not _removable(document, old):
        return 0
    document = speakers.change(speaker_id, fence, by=BY, did="sweep", until=until)
    keys = _removable(document, old)
    blobs.remove(keys)
    for key in keys:
        GARBAGE.labels("artifact" if key.endswith(".safetensors") else "blob").inc()
    if keys:
        log.info("garbage.removed", speaker=str(speaker_id), objects=len(keys))
    return len(keys)


def _removable(document: SpeakerDocument, old: list[tuple[str, frozenset[str]]]) -> list[str]:
    """Return the keys of objects with a fenced id. No document will ever name these objects."""
    return [key for key, ids in old if not document.swept.keys().isdisjoint(ids)]


def _ids(listing: Listing, *, older_than: timedelta | None = None) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the key of each object of a speaker's bytes, with the ids that a document must name to keep
    it.
    """
    for stored in listing.objects:
        found = bytes_of(stored.key)
        if found and (older_than is None or listing.taken_at - stored.last_modified > older_than):
            yield stored.key, frozenset({found.vuid, found.named_by})
