"""Removes voices and versions that were deleted longer ago than the grace period: from the document, and then
from the bucket.
"""

from datetime import timedelta

import structlog

from services.shared.bucket.layout import bytes_of
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.changes import without_lives
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.registry.speakers import Speakers

log = structlog.get_logger(__name__)

BY = "housekeeping"


def erase(speakers: Speakers, blobs: StoredBytes, speaker_id: SpeakerId, *, grace: timedelta) -> float | None:
    """Remove deleted voices and versions whose grace period is over, with their bytes.

    Returns the number of seconds until the next check, or None if nothing is left to remove. Raises
    `VoiceDamaged`, `VoiceUnreadable`, `Unavailable`. If the call fails, the next sweep removes bytes that are
    left in the bucket.
    """
    before = SpeakerDocument()

    def forget(document: SpeakerDocument) -> SpeakerDocument:
        nonlocal before
        before = document
        return without_lives(document, deleted_before=speakers.now() - round(grace.total_seconds()))

    known = speakers.read(speaker_id).document
    if forget(known) is not known:
        after = speakers.change(speaker_id, forget, by=BY, did="erase")
        _remove(blobs, speaker_id, before.names_of_bytes - after.names_of_bytes)
        known = after
    return erasure_due_in(known, grace, now=speakers.now())


def erasure_due_in(document: SpeakerDocument, grace: timedelta, *, now: int) -> float | None:
    """Return the seconds until the first grace period of a speaker ends, or None if there is none."""
    ends = [life.deleted_at + grace.total_seconds() - now for life in document.dead]
    return max(1.0, min(ends)) if ends else None


def _remove(blobs: StoredBytes, speaker_id: SpeakerId, names: frozenset[str]) -> None:
    """Remove bytes that a change has just dropped from the document. No change can name them again, because
    their life has ended.
    """
    found = ((stored.key, bytes_of(stored.key)) for stored in blobs.listing(speaker_id).objects)
    keys = [key for key, one in found if one and one.vuid in names]
    blobs.remove(keys)
    log.info("bytes.erased", speaker=str(speaker_id), objects=len(keys))
