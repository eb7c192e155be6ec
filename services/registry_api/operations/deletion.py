"""Deletes speakers. Knows no HTTP.

A delete commits a tombstone, which ends all versions up to its seq. It returns when no process answers from
memory any more what it has ended. After the grace period, `maintenance/garbage_collector.py` removes the
bytes.
"""

from collections.abc import Callable

import structlog

from services.registry_api.operations.speakers import Speakers
from services.shared.bucket.facts import commit
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Store
from services.shared.index.leases import Leases
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.refusals import AliasMoved
from services.shared.index.speaker_index import COMMIT_SECONDS, SpeakerIndex
from services.shared.model.clock import Clock
from services.shared.model.domain import TombstoneFact
from speaker_registry.errors import PreconditionFailed, Unavailable, VoiceNotFound
from speaker_registry.names import parse_speaker_name

log = structlog.get_logger()

_TRIES = 3
"""A delete by id, or one that checks the voice, is tried this often. Each try reads the current state."""


class Deletions:
    """Deletes speakers with all their versions and jobs."""

    def __init__(
        self, speakers: Speakers, store: Store, index: SpeakerIndex, leases: Leases, clock: Clock
    ) -> None:
        self._speakers = speakers
        self._leases = leases
        self._store = store
        self._index = index
        self._clock = clock

    def delete(
        self, namespace: str, name: str, *, check: Callable[[IndexedSpeaker], None] | None = None
    ) -> IndexedSpeaker:
        """Delete a voice with all its versions and jobs, at once. Returns the speaker as it was before.

        Args:
            name: the voice's name or its id, as in `Speakers.find`.
            check: is called with the live speaker, and raises if that is not the one to delete.

        Raises:
            VoiceNotFound.
            PreconditionFailed: the voice changed after it was checked.
            Unavailable: the voice was not deleted, or it is not known whether it was.
        """
        for _ in range(_TRIES):
            speaker_id, before = self._speakers.locate(namespace, name, self._index.look)
            if check is not None and before.speaker.live:
                check(before)
            # An id stands for one voice. A voice that is registered anew under the same name must not be
            # deleted.
            by_id = speaker_id != SpeakerId.of(namespace, parse_speaker_name(name))
            started = self._clock.monotonic()
            try:
                place = self._index.reserve_tombstone(
                    speaker_id, unchanged=before.speaker.seq if check is not None or by_id else None
                )
                break
            except VoiceNotFound:
                self._leases.settle()  # the delete before this one may not have come so far
                raise VoiceNotFound(f"Voice '{name}' not found", param="name") from None
            except AliasMoved:
                if check is not None:
                    raise PreconditionFailed(f"Voice '{name}' has just changed.", param="If-Match") from None
        else:
            raise Unavailable(
                f"Voice '{name}' changed during each of {_TRIES} attempts to delete it.",
                retry_after_seconds=1,
            )
        if self._clock.monotonic() - started > COMMIT_SECONDS:
            # Repeated uploads may already have been answered with the versions that this delete would end.
            raise Unavailable("Deleting took too long; send the request again.", retry_after_seconds=1)
        fact = TombstoneFact(place.seq, place.number, place.created_at)
        commit(self._store, speaker_id.tombstone_key(fact, self._clock.new_id()))
        killed = self._index.apply_tombstone(speaker_id, place.seq, place.number, place.created_at)
        log.info("speaker.deleted", speaker=str(speaker_id), versions=killed)
        self._leases.settle()
        return before
