"""Repairs one speaker: makes the index equal to the facts, and finishes what a crash left unfinished."""

import structlog

from services.registry_api.maintenance.lost_jobs import LostJobs
from services.registry_api.operations import Operations
from services.shared.bucket.facts import read_certain
from services.shared.bucket.keys import SpeakerId
from services.shared.index.census import take_census
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.script_arguments import SpeakerUpdate
from services.shared.model.domain import Speaker
from services.shared.registry.parts import RegistryParts
from services.shared.telemetry.metrics import REPAIRS

log = structlog.get_logger()

_LOOK_AGAIN_SOON_SECONDS = 3.0
_LOOK_AGAIN_SECONDS = 15.0
_TRY_AGAIN_SECONDS = 60.0
"""The delay before objects that the store failed to return are read again."""
LOOK_MUCH_LATER_SECONDS = 300.0
"""The delay before a speaker is examined again that is damaged or could not be repaired."""


class Repairs:
    """Repairs speakers, one at a time. Any number of processes may repair the same speaker at once."""

    def __init__(self, parts: RegistryParts, operations: Operations) -> None:
        self._store = parts.store
        self._index = parts.index
        self._clock = parts.clock
        self._statuses = operations.statuses
        self._extractions = operations.extractions
        self._promoter = operations.promoter
        self._lost_jobs = LostJobs(parts, operations.extractions)

    def repair(self, speaker_id: SpeakerId) -> float | None:
        """Apply facts that did not reach the index, start missing extractions, replace lost jobs, and
        promote.

        Returns in how many seconds to examine the speaker again, or None if nothing is left to do.
        """
        epoch, listed = self._index.epoch, self._clock.now()
        truth = read_certain(self._store, speaker_id)
        if _artifacts(truth) - _artifacts(self._index.load(speaker_id).speaker):
            # An artifact that is applied now stays in force, so the listing must not have omitted an earlier
            # one.
            truth = read_certain(self._store, speaker_id, listings=2)
        self._index.tell(speaker_id, SpeakerUpdate(truth, listed), epoch=epoch)
        indexed = self._index.load(speaker_id)
        if indexed.census == "pending":
            take_census(self._store, self._index, speaker_id, self._clock)
            indexed = self._index.load(speaker_id)
        unreadable, under_way = indexed.speaker.unreadable, bool(indexed.pending_extractions)
        if not truth.undecided and not unreadable:  # else artifacts that seem to be missing may exist
            if self._lost_jobs.replace(speaker_id, indexed):
                indexed = self._index.load(speaker_id)
            under_way = self._extract_missing(speaker_id, indexed) > 0 or bool(indexed.pending_extractions)
        self._promoter.promote(speaker_id)
        if truth.undecided:
            return _LOOK_AGAIN_SOON_SECONDS
        if unreadable:
            return _TRY_AGAIN_SECONDS
        if indexed.speaker.damaged:  # perhaps by one wrong answer of the store, or it will be restored
            return LOOK_MUCH_LATER_SECONDS
        return _LOOK_AGAIN_SECONDS if under_way else None

    def are_due(self, speaker_id: SpeakerId, truth: Speaker) -> bool:
        """Return whether a speaker has something left to extract, to promote or to read again."""
        if truth.damaged or truth.unreadable:
            return True
        indexed = IndexedSpeaker(truth)
        return self._promoter.is_due(speaker_id, indexed) or any(
            status.state_of_current == "pending"
            for version in truth.versions
            for status in self._statuses.of_wanted(indexed, version)
        )

    def _extract_missing(self, speaker_id: SpeakerId, indexed: IndexedSpeaker) -> int:
        """Start the missing extractions. Returns how many."""
        begun = 0
        for version in indexed.speaker.versions:
            for profile in [status.profile for status in self._statuses.missing(indexed, version)]:
                about = {"speaker": str(speaker_id), "vuid": version.vuid, "profile": profile.name}
                log.info("extraction.resumed", **about)
                REPAIRS.labels("extraction_resumed").inc()
                self._extractions.claim(speaker_id, version, profile)
                begun += 1
        return begun


def _artifacts(speaker: Speaker) -> set[tuple[str, str]]:
    """Return (vuid, akey) of all artifacts in force."""
    return {(version.vuid, akey) for version in speaker.versions for akey in version.artifacts}
