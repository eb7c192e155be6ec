"""Carries out one `cache` call: starts missing extractions, and tracks their jobs. Knows no HTTP."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from services.registry_api.operations.extractions import Extractions
from services.registry_api.operations.speakers import Speakers
from services.shared.bucket.keys import SpeakerId
from services.shared.index.jobs import JobRecord, Jobs
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import ClaimResult
from services.shared.model.domain import SpeakerVersion
from services.shared.registry.status import ProfileStatus, Statuses, worst
from speaker_registry.errors import ArtifactFailed, CacheUnsupported, JobNotFound, Unavailable
from speaker_registry.names import parse_speaker_name
from speaker_registry.schemas import CacheStatus

ALREADY_VALID = "Cache already exists and is valid"
"""vLLM-Omni's message."""


@dataclass(frozen=True, slots=True)
class CacheState:
    """The state of a voice's artifacts at one moment."""

    version: SpeakerVersion
    statuses: Sequence[ProfileStatus]
    pending_job_ids: Sequence[str]
    """Jobs of this call that have not ended."""
    failed: Sequence[str]
    """For each failed profile, its name and the reason."""
    jobs_ended: bool
    """True if the call had jobs and all of them have ended."""

    @property
    def finished(self) -> bool:
        return not self.pending_job_ids and (bool(self.failed) or worst(self.statuses) in {"ready", "failed"})

    @property
    def over(self) -> bool:
        """True if waiting is pointless. A job that made an artifact with an encoder that was replaced
        meanwhile has ended without making the voice ready.
        """
        return self.finished or self.jobs_ended

    @property
    def job_id(self) -> str | None:
        """A job that callers can follow, unless the call has finished."""
        known = [*self.pending_job_ids, *(status.job_id for status in self.statuses if status.job_id)]
        return known[0] if known and not self.finished else None


class Precomputation:
    """One call for some profiles of the version that a reference stands for when the call begins."""

    def __init__(
        self,
        *,
        speakers: Speakers,
        statuses: Statuses,
        extractions: Extractions,
        jobs: Jobs,
        namespace: str,
        name: str,
        reference: int | str,
        profile: str | None,
    ) -> None:
        self._speakers = speakers
        self._statuses = statuses
        self._extractions = extractions
        self._job_records = jobs
        self._namespace = namespace
        self._name = name
        self._profiles = [profile] if profile else list(statuses.required)
        self._jobs: list[str] = []
        self._reference = reference
        """What names the version. After the first look it is a number, because an alias may move."""
        self._force = False
        self._message: str | None = None
        self.speaker_id = SpeakerId.of(namespace, parse_speaker_name(name))
        """The speaker to wait for. It is certain only after `start`, because the name may be a voice's id."""

    def start(self, *, force: bool) -> CacheState:
        """Start extracting the missing artifacts, or with `force` all of them, and remember the jobs to wait
        for.

        A profile that cannot be extracted counts as failed, but does not block the others. Without `force`,
        the bytes of ready artifacts are checked against their digests, and artifacts whose bytes are lost are
        extracted again.

        Raises:
            VoiceNotFound, VersionNotFound, AliasNotFound, ProfileUnknown.
            CacheUnsupported: none of the profiles can be extracted.
            Unsound: the bytes of an uploaded artifact are lost, which only its owner can upload again.
        """
        indexed, version = self._find()
        statuses = [self._statuses.of_profile(indexed, version, name) for name in self._profiles]
        if not force:
            for ready in filter(None, [one.artifact for one in statuses]):
                self._extractions.artifact_or_replacement(self.speaker_id, version, ready)
        possible = [one.profile.name for one in statuses if not one.unsupported]
        claims = self._extractions.ensure(self.speaker_id, version, possible or self._profiles, force=force)
        self._force = force
        self._await(claims)
        if all(claim.outcome == "ready" for claim in claims.values()):
            self._message = ALREADY_VALID
        return self.look()

    @property
    def question(self) -> Hashable:
        """Equal for calls whose looks answer the same."""
        return ("cache", self._name, self._reference, tuple(self._profiles), tuple(self._jobs), self._force)

    def look(self) -> CacheState:
        """Return the current state. Raises `VoiceNotFound` or `VersionNotFound` if the voice was deleted."""
        indexed, version = self._find()
        statuses = [
            self._statuses.explained(self._statuses.of_profile(indexed, version, name))
            for name in self._profiles
        ]
        pending_job_ids = [
            pending.job_id for pending in indexed.pending_extractions if pending.job_id in self._jobs
        ]
        ended = [] if pending_job_ids else self._records()
        pending_job_ids += [job.id for job in ended if not job.finished]
        if not pending_job_ids:
            pending_job_ids += self._start_anew(version, ended)
        failed = self._failures(statuses, pending_job_ids, ended)
        jobs_ended = bool(ended) and not pending_job_ids
        return CacheState(version, statuses, pending_job_ids, failed, jobs_ended)

    def _await(self, claims: Mapping[str, ClaimResult]) -> None:
        """Remember the jobs of these claims. Reading them once lets `FollowedJobs` find them after a loss of
        Redis.
        """
        self._jobs = [claim.job_id for claim in claims.values() if claim.job_id]
        with suppress(Unavailable):
            self._records()

    def _records(self) -> list[JobRecord]:
        """Return the records of this call's jobs, as far as they are found."""
        found = []
        for job_id in self._jobs:
            with suppress(JobNotFound):
                found.append(self._job_records.get(self._namespace, job_id))
        return found

    def _start_anew(self, version: SpeakerVersion, ended: Sequence[JobRecord]) -> list[str]:
        """Start extractions again that were lost with Redis, and return the ids of their jobs.

        Housekeeping restarts only extractions of required profiles without an artifact.
        """
        lost = [job for job in ended if job.state == "superseded"]
        if not lost:
            return []
        profiles = [job.profile for job in lost]
        try:
            claims = self._extractions.ensure(self.speaker_id, version, profiles, force=self._force)
        except Unavailable:  # just after the loss; the next call tries again
            return [job.id for job in lost]
        self._await(claims)
        return self._jobs

    def _find(self) -> tuple[IndexedSpeaker, SpeakerVersion]:
        indexed, version = self._speakers.find_version(self._namespace, self._name, self._reference)
        self._reference = version.number
        self.speaker_id = SpeakerId.of_record(self._namespace, version.record)
        if not version.extractable:
            raise CacheUnsupported(
                f"Version {version.number} was registered with a precomputed speaker embedding of "
                f"{version.record.embedding_width} numbers: there is nothing to extract. "
                "Re-upload with an audio file.",
                param="name",
            )
        return indexed, version

    def _failures(
        self, statuses: Sequence[ProfileStatus], pending_job_ids: Sequence[str], ended: Sequence[JobRecord]
    ) -> list[str]:
        """Return failed profiles, and failed or canceled jobs of this call even if an older artifact is
        still served.
        """
        failed = [f"{one.profile.name}: {one.error}" for one in statuses if one.state == "failed"]
        if failed or pending_job_ids:
            return failed
        return [f"{one.profile}: {_fault(one)}" for one in ended if one.state in {"failed", "canceled"}]

    def body(self, state: CacheState) -> CacheStatus:
        """Return the answer for a state in which nothing failed."""
        status = worst(state.statuses)
        return CacheStatus(
            voice=state.version.record.key,
            # After `force`, the older artifact is served until the new one is ready.
            cache_status="processing" if state.pending_job_ids and status == "ready" else status,
            message=self._message,
            job_id=state.job_id,
            version=state.version.number,
            untrained=any(map(self._statuses.untrained, state.statuses)),
            reason=next((one.reason for one in state.statuses if one.reason), None),
        )

    def raise_if_failed(self, state: CacheState) -> None:
        if state.finished and state.failed:
            kept = worst(state.statuses) == "ready"
            reasons = "; ".join(state.failed) + (" The previous artifact is still served." if kept else "")
            raise ArtifactFailed(
                f"Voice '{state.version.record.key}' could not be extracted. {reasons}", param="name"
            )


def _fault(job: JobRecord) -> str:
    """Say why a job ended without an artifact."""
    return f"{job.error['code']}: {job.error['message']}" if job.error else f"job {job.id} was {job.state}"
