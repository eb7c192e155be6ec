"""Ends pending extractions whose job no worker will run, and starts others if they are still wanted."""

import structlog

from services.registry_api.operations.extractions import Extractions
from services.shared.bucket.keys import SpeakerId
from services.shared.index.jobs import JobRecord, Jobs
from services.shared.index.reading import IndexedSpeaker, PendingExtraction
from services.shared.index.speaker_index import VersionSelection
from services.shared.model.domain import FailureRecord, SpeakerVersion
from services.shared.registry.parts import RegistryParts
from services.shared.registry.publication import record_failure
from services.shared.registry.status import unsupported_reason
from services.shared.telemetry.metrics import REPAIRS
from speaker_registry.errors import JobNotFound, LeaseExpired

log = structlog.get_logger()


class LostJobs:
    """Finds and replaces the lost jobs of one speaker at a time."""

    def __init__(self, parts: RegistryParts, extractions: Extractions) -> None:
        self._parts = parts
        self._extractions = extractions

    def replace(self, speaker_id: SpeakerId, indexed: IndexedSpeaker) -> int:
        """End or replace pending extractions whose job no worker will run. Returns how many there were."""
        lost, live = 0, {version.vuid for version in indexed.speaker.versions}
        for pending in indexed.pending_extractions:
            state = self._parts.dispatcher.state(pending.job_id, pending.profile)
            if pending.vuid not in live or state != "alive":
                self._replace(speaker_id, pending, state)
                lost += 1
        return lost

    def _replace(self, speaker_id: SpeakerId, pending: PendingExtraction, state: str) -> None:
        # The speaker is read again, because time has passed since. Only this version is read, because a voice
        # may have a thousand versions with a pending extraction each.
        selection = VersionSelection(vuid=pending.vuid)
        version = self._parts.index.look(speaker_id, selection).speaker.by_vuid(pending.vuid)
        job = self._job(speaker_id, pending)
        if version is None or job is None:
            self._close(speaker_id, pending, "superseded")
        elif self._akey(pending, version, job) in version.artifacts:
            self._close(speaker_id, pending, "succeeded")
        elif state == "failed":
            self._give_up(speaker_id, pending, version, job)
        else:
            self._start_anew(speaker_id, pending, version, job)

    def _job(self, speaker_id: SpeakerId, pending: PendingExtraction) -> JobRecord | None:
        try:
            return Jobs(self._parts.index).get(speaker_id.namespace, pending.job_id)
        except JobNotFound:
            return None

    def _akey(self, pending: PendingExtraction, version: SpeakerVersion, job: JobRecord) -> str:
        """Return the key of the artifact that a pending extraction is to make."""
        return version.artifact_key(pending.profile, self._fingerprint(pending), job.build)

    def _fingerprint(self, pending: PendingExtraction) -> str:
        return pending.fingerprint or self._parts.profile_records.fingerprint(pending.profile)

    def _close(self, speaker_id: SpeakerId, pending: PendingExtraction, state: str) -> None:
        REPAIRS.labels("job_closed").inc()
        self._parts.index.set_job(speaker_id, pending.job_id, state, landing=pending)

    def _start_anew(
        self, speaker_id: SpeakerId, pending: PendingExtraction, version: SpeakerVersion, job: JobRecord
    ) -> None:
        """Replace a job that the queue has lost, if its artifact is still wanted."""
        log.warning("job.lost", job_id=pending.job_id, speaker=str(speaker_id))
        REPAIRS.labels("job_lost").inc()
        self._parts.index.set_job(speaker_id, pending.job_id, "superseded")
        profile = self._parts.catalogue.get(pending.profile)
        if unsupported_reason(version, profile) is None:
            self._extractions.claim(speaker_id, version, profile, steal=pending.job_id, force=job.forced)
        # No claim took the job over if its artifact exists, or another fingerprint is wanted now.
        self._parts.index.set_job(speaker_id, pending.job_id, "superseded", landing=pending)

    def _give_up(
        self, speaker_id: SpeakerId, pending: PendingExtraction, version: SpeakerVersion, job: JobRecord
    ) -> None:
        """Record the failure of a job that the queue has given up, because its workers died."""
        REPAIRS.labels("job_given_up").inc()
        error = LeaseExpired(f"The worker died or hung each of the {job.attempt} times it tried.")
        record = FailureRecord(
            profile=pending.profile,
            fingerprint=self._fingerprint(pending),
            build=job.build,
            attempt=f"{self._parts.clock.new_id()}-{pending.job_id.removeprefix('job_')}-end",
            code=error.code,
            message=error.message,
            attempts=job.attempt,
        )
        record_failure(
            self._parts.store,
            self._parts.index,
            speaker_id,
            version=version,
            pending=pending,
            record=record,
            error=error,
        )
