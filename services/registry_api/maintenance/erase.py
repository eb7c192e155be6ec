"""Removes voices and versions that were deleted longer ago than the grace period: from the document, and then
from the bucket.

The document names the versions whose bytes are still to be removed, so an erasure that fails or whose process
ends goes on at the next check.
"""

from collections.abc import Callable, Collection
from datetime import timedelta

import structlog

from services.shared.bucket.layout import bytes_of
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.changes import with_bytes_removed, without_lives
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.registry.speakers import Speakers

log = structlog.get_logger(__name__)

BY = "housekeeping"


def erase(
    speakers: Speakers,
    blobs: StoredBytes,
    speaker_id: SpeakerId,
    *,
    grace: timedelta,
    forget_voice: Callable[[SpeakerId], object] = lambda _: None,
) -> float | None:
    """Remove deleted voices and versions whose grace period is over, with their bytes.

    Returns the number of seconds until the next check, or None if nothing is left to remove. Raises
    `VoiceDamaged`, `VoiceUnreadable`, `Unavailable`. If the call fails, the next one goes on.

    Args:
        forget_voice: called for a voice of which nothing is left, to remove its name elsewhere.
    """

    def forget(document: SpeakerDocument) -> SpeakerDocument:
        return without_lives(document, deleted_before=speakers.now() - round(grace.total_seconds()))

    document = speakers.read(speaker_id).document
    if forget(document) is not document:
        document = speakers.change(speaker_id, forget, by=BY, did="erase")
    elif document.erasing:  # this may be an outdated copy, for example if the bucket was restored since
        document = speakers.refresh(speaker_id)
    if gone := document.erasing:
        if not document.live and not document.dead:
            forget_voice(speaker_id)
        _remove(blobs, speaker_id, gone)
        document = speakers.change(
            speaker_id, lambda newest: with_bytes_removed(newest, gone), by=BY, did="erase_bytes"
        )
    return erasure_due_in(document, grace, now=speakers.now())


def erasure_due_in(document: SpeakerDocument, grace: timedelta, *, now: int) -> float | None:
    """Return the seconds until an erasure of a speaker is to begin or to go on, or None if there is none."""
    if document.erasing:
        return 1.0
    ends = [life.deleted_at + grace.total_seconds() - now for life in document.dead]
    return max(1.0, min(ends)) if ends else None


def _remove(blobs: StoredBytes, speaker_id: SpeakerId, vuids: Collection[str]) -> None:
    """Remove the bytes of versions that the document has forgotten. No change can name them again, because
    no other version will have their vuids.
    """
    found = ((stored.key, bytes_of(stored.key)) for stored in blobs.listing(speaker_id).objects)
    keys = [key for key, one in found if one and one.vuid in vuids]
    blobs.remove(keys)
    log.info("bytes.erased", speaker=str(speaker_id), objects=len(keys))
