"""Rebuilds the index after a loss of Redis: admits every speaker of the bucket to it.

Reads and writes are served meanwhile, because a request that needs a speaker admits it. An interrupted
rebuild continues where it was, because speakers that the index knows are not read again.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import structlog

from services.registry_api.maintenance.each_speaker import in_batches, in_parallel, safely
from services.registry_api.maintenance.garbage_collector import GarbageCollector
from services.registry_api.maintenance.repairs import Repairs
from services.shared.bucket.facts import certain_of, speaker_ids
from services.shared.bucket.keys import SpeakerId, is_data, is_slug, speakers_folder
from services.shared.bucket.store import Store, TakeListing
from services.shared.index.script_arguments import SpeakerUpdate
from services.shared.index.speaker_index import SpeakerIndex
from speaker_registry.errors import Unavailable
from speaker_registry.names import is_namespace

log = structlog.get_logger()

_ADMITTED_AT_A_TIME = 32
"""The number of speakers that one thread reads and sends to the index in one round trip."""

Result = TypeVar("Result")
Listed = tuple[SpeakerId, TakeListing]


class Rebuild:
    """One rebuild of the index."""

    def __init__(
        self, store: Store, index: SpeakerIndex, repairs: Repairs, garbage: GarbageCollector, threads: int
    ) -> None:
        self._store = store
        self._index = index
        self._repairs = repairs
        self._garbage = garbage
        # Reading a local folder is limited by the processor, so threads would only slow each other down.
        self._threads = 1 if store.is_local else threads
        self._epoch = index.epoch
        self._not_admitted: set[SpeakerId] = set()
        self.admitted = 0
        """The number of speakers that the index did not know yet."""

    def steps(self) -> Iterator[None]:
        """Admit some speakers at each step. After the last step, the index is complete."""
        batches = in_batches(self._listings(), _ADMITTED_AT_A_TIME)
        for updates in in_parallel(self._read_unknown, batches, self._threads):
            self.admitted += self._tell_many(updates)
            yield
        self._admit_missed()
        self._index.forget_older(self._is_known)
        self._index.set_complete(self._epoch)

    def _listings(self) -> Iterator[Listed]:
        """Yield each speaker of the bucket with a function that lists its facts."""
        for namespace in filter(is_namespace, self._store.folders("")):
            for slug, take in self._store.listings(speakers_folder(namespace), skips=is_data):
                if is_slug(slug):
                    yield SpeakerId(namespace, slug), take

    def _read_unknown(self, some: Sequence[Listed]) -> list[tuple[SpeakerId, SpeakerUpdate]]:
        """Read the facts of those speakers that the index does not know yet."""
        unknown = set(self._index.unknown([speaker_id for speaker_id, _ in some]))
        read = [
            (speaker_id, self._or_keep_unknown(partial(self._read, take), speaker_id))
            for speaker_id, take in some
            if speaker_id in unknown
        ]
        return [(speaker_id, update) for speaker_id, update in read if update]

    def _read(self, take: TakeListing, speaker_id: SpeakerId) -> SpeakerUpdate:
        """Read the facts of a speaker, and decide whether it has to be examined again."""
        listing = take()
        truth = certain_of(self._store, listing)
        has_to_erase = truth.tombstone > 0 and self._garbage.erasure_due_by(listing) is not None
        look = has_to_erase or self._repairs.are_due(speaker_id, truth)
        return SpeakerUpdate(truth, listing.taken_at.timestamp(), look)

    def _tell_many(self, speakers: Sequence[tuple[SpeakerId, SpeakerUpdate]]) -> int:
        """Admit some speakers. Returns how many were admitted."""
        try:
            self._index.tell_many(speakers, epoch=self._epoch)
            return len(speakers)
        except Unavailable:
            raise
        except Exception:
            log.exception("speakers.told_one_by_one")  # one of them has inconsistent facts
            return sum(self._tell(speaker_id, update) for speaker_id, update in speakers)

    def _tell(self, speaker_id: SpeakerId, update: SpeakerUpdate) -> bool:
        def tell(speaker_id: SpeakerId) -> bool:
            self._index.tell(speaker_id, update, epoch=self._epoch)
            return True

        return self._or_keep_unknown(tell, speaker_id) is not None

    def _admit_missed(self) -> None:
        """Admit speakers that the first listing omitted, because a complete index treats unknown names as no
        voice.

        Only names are listed, which costs little.
        """
        for some in in_batches(speaker_ids(self._store), _ADMITTED_AT_A_TIME):
            for speaker_id in set(self._index.unknown(some)) - self._not_admitted:
                self.admitted += self._or_keep_unknown(self._index.admit, speaker_id) or 0

    def _or_keep_unknown(self, work: Callable[[SpeakerId], Result], speaker_id: SpeakerId) -> Result | None:
        """Return the result of `work`, or None if the speaker cannot be admitted.

        The index then remembers that the name exists, so that it is not registered as a new one.
        """
        found = safely(work, speaker_id, otherwise=None)
        if found is None:
            self._index.keep_unknown(speaker_id)
            self._not_admitted.add(speaker_id)
        return found

    def _is_known(self, speaker_id: SpeakerId) -> bool:
        return bool(self._store.list(speaker_id.prefix).objects)
