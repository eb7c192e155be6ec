"""Deletes garbage, one speaker at a time, and erases deleted data once its grace period has ended."""

from collections.abc import Sequence
from datetime import timedelta

import structlog

from services.registry_api.maintenance.garbage import erasure_due_in, kind_of, unreachable
from services.shared.bucket.facts import read_facts
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Listing, Store
from services.shared.configuration.settings import HousekeepingSettings
from services.shared.index.speaker_index import SpeakerIndex
from services.shared.index.suspicion import confirmed
from services.shared.model.domain import fold
from services.shared.telemetry.metrics import FOREIGN, GARBAGE

log = structlog.get_logger()

_LISTINGS_APART_SECONDS = 3600.0
"""The least time between the two listings that must agree that an object is garbage. It is much longer than a
cache or replica of the store returns outdated listings.
"""


class GarbageCollector:
    """Deletes the objects of a speaker that nothing needs any more."""

    def __init__(self, store: Store, index: SpeakerIndex, settings: HousekeepingSettings) -> None:
        self._store = store
        self._index = index
        self._settings = settings
        self._grace = timedelta(seconds=settings.grace_seconds)
        self._deleted_grace = timedelta(seconds=settings.deleted_grace_seconds)

    def collect(self, speaker_id: SpeakerId) -> int:
        """Delete the garbage of one speaker. Returns how many objects were deleted."""
        listing = self._store.list(speaker_id.prefix)
        facts = list(read_facts(self._store, listing))
        truth = fold(facts)
        if truth.damaged or truth.unreadable:
            log.warning("garbage.left_alone", speaker=str(speaker_id), unreadable=len(truth.unreadable))
            return 0  # the record may come back from a backup, or the store may return it again
        found = unreachable(
            listing,
            facts,
            self._index.load(speaker_id).speaker,
            grace=self._grace,
            deleted_grace=self._deleted_grace,
        )
        FOREIGN.inc(found.foreign)
        keys = [*self._confirmed(speaker_id, listing, found.presumed), *found.certain]
        if keys:
            self._store.delete(keys)  # deletes the rest even if one cannot be deleted
            log.info("garbage.collected", speaker=str(speaker_id), objects=len(keys))
            for key in keys:
                GARBAGE.labels(kind_of(key)).inc()
        return len(keys)

    def erase_if_due(self, speaker_id: SpeakerId) -> float | None:
        """Erase deleted data if its grace period has ended.

        Returns in how many seconds the grace period ends, or None if nothing is left to erase.
        """
        due_in = self.erasure_due_in(speaker_id)
        if due_in is None or due_in > 0:
            return due_in
        self.collect(speaker_id)
        return None

    def erasure_due_in(self, speaker_id: SpeakerId) -> float | None:
        """Return in how many seconds the grace period of deleted data ends, or None if there is none."""
        if not self._index.look(speaker_id).speaker.tombstone:
            return None  # nothing was ever deleted, so a listing is not needed
        return self.erasure_due_by(self._store.list(speaker_id.prefix))

    def erasure_due_by(self, listing: Listing) -> float | None:
        """Return the same for a speaker whose objects are listed already."""
        return erasure_due_in(listing, deleted_grace=self._deleted_grace)

    def _confirmed(self, speaker_id: SpeakerId, listing: Listing, presumed: Sequence[str]) -> list[str]:
        """Return the keys that an earlier listing showed to be garbage as well."""
        apart = min(self._settings.grace_seconds, _LISTINGS_APART_SECONDS)
        return confirmed(
            self._index,
            speaker_id,
            presumed,
            at=listing.taken_at.timestamp(),
            apart_seconds=apart,
            kept_seconds=3 * max(self._settings.sweep_seconds, apart),
        )
