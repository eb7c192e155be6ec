"""One `cache` call: which artifacts it is about, which jobs it waits for, how they stand. Knows no HTTP."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from services.shared.bucket.keys import SpeakerId
from services.shared.index.jobs import JobRecord, Jobs
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import ClaimResult, VersionSelection
from services.shared.model.domain import SpeakerVersion
from services.shared.registry.parts import RegistryParts
from services.shared.registry.registrar import Registrar
from services.shared.registry.repair import artifact_or_replacement
from services.shared.registry.status import ProfileStatus, worst
from speaker_registry.errors import ArtifactFailed, CacheUnsupported, JobNotFound, Unavailable
from speaker_registry.names import parse_speaker_name
from speaker_registry.schemas import CacheStatus

ALREADY_VALID = "Cache already exists and is valid"
"""In vLLM-Omni's words."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a voice showed. `pending_job_ids`: jobs of this call that have not ended. `failed`:
    why some did, by profile.
    """

    version: SpeakerVersion
    statuses: Sequence[ProfileStatus]
    pending_job_ids: Sequence[str]
    failed: Sequence[str]

    @property
    def finished(self) -> bool:
        return not self.pending_job_ids and (bool(self.failed) or worst(self.statuses) in {"ready", "failed"})

    @property
    def job_id(self) -> str | None:
        """One to ask about while it is not finished."""
        known = [*self.pending_job_ids, *(status.job_id for status in self.statuses if status.job_id)]
        return known[0] if known and not self.finished else None


class Precompute:
    """One call, about the version that the name stands for now, and the profiles asked for."""

    def __init__(
        self,
        parts: RegistryParts,
        registrar: Registrar,
        jobs: Jobs,
        namespace: str,
        name: str,
        profile: str | None,
    ) -> None:
        self._parts = parts
        self._registrar = registrar
        self._job_records = jobs
        self._namespace = namespace
        self._name = name
        self._profiles = [profile] if profile else list(parts.catalogue.required)
        self._jobs: list[str] = []
        self._begun = VersionSelection()
        """The version that the jobs are of: the name may come to stand for another one."""
        self._force = False
        self._message: str | None = None
        self.speaker_id = SpeakerId.of(namespace, parse_speaker_name(name))
        """Whose changes to wait for; known for certain after `start`, since the name may be a voice's id."""

    def start(self, *, force: bool) -> Look:
        """Claim what is missing, or all of it by `force`; remember the jobs to wait for. A profile that
        nothing can be extracted for counts as failed, but holds up no other.

        Without `force` the bytes of what is ready are read and held against their digests. Artifacts whose
        bytes are lost are extracted again.

        Raises:
            VoiceNotFound, ProfileUnknown; CacheUnsupported: nothing can be extracted for any of them.
            Unsound: the bytes of an artifact that only its owner can bring are lost.
        """
        indexed, version = self._find()
        self._begun = VersionSelection(vuid=version.vuid)
        statuses = [self._registrar.profile_status(indexed, version, name) for name in self._profiles]
        if not force:
            for ready in filter(None, [one.artifact for one in statuses]):
                artifact_or_replacement(self._parts, self._registrar, self.speaker_id, version, ready)
        possible = [one.profile.name for one in statuses if not one.unsupported]
        claims = self._registrar.ensure(self.speaker_id, version, possible or self._profiles, force=force)
        self._force = force
        self._await(claims)
        if all(claim.outcome == "ready" for claim in claims.values()):
            self._message = ALREADY_VALID
        return self.look()

    @property
    def question(self) -> Hashable:
        """Equal for calls whose looks answer the same."""
        return ("cache", self._name, tuple(self._profiles), tuple(self._jobs), self._force)

    def look(self) -> Look:
        """Where it stands now. The voice may be gone: then it is not found."""
        indexed, version = self._find()
        statuses = [
            self._registrar.explained(self._registrar.profile_status(indexed, version, name))
            for name in self._profiles
        ]
        pending_job_ids = [
            pending.job_id for pending in indexed.pending_extractions if pending.job_id in self._jobs
        ]
        ended = [] if pending_job_ids else self._records()
        pending_job_ids += [job.id for job in ended if not job.finished]
        if not pending_job_ids:
            pending_job_ids += self._start_anew(version, ended)
        return Look(
            version, statuses, pending_job_ids, list(self._failures(statuses, pending_job_ids, ended))
        )

    def _await(self, claims: Mapping[str, ClaimResult]) -> None:
        """Wait for the jobs of these claims. Looked at once, they can be followed over a loss of Redis."""
        self._jobs = [claim.job_id for claim in claims.values() if claim.job_id]
        with suppress(Unavailable):
            self._records()

    def _records(self) -> list[JobRecord]:
        """Of the jobs that this call waits for, as far as they are known."""
        found = []
        for job_id in self._jobs:
            with suppress(JobNotFound):
                found.append(self._job_records.get(self._namespace, job_id))
        return found

    def _start_anew(self, version: SpeakerVersion, ended: Sequence[JobRecord]) -> list[str]:
        """Extractions that were lost with Redis. Housekeeping starts only those again that every voice must
        have, where there is no artifact yet.
        """
        lost = [job for job in ended if job.state == "superseded" and job.vuid == version.vuid]
        if not lost:
            return []
        profiles = [job.profile for job in lost]
        try:
            claims = self._registrar.ensure(self.speaker_id, version, profiles, force=self._force)
        except Unavailable:  # just after the loss: the next look tries again
            return [job.id for job in lost]
        self._await(claims)
        return self._jobs

    def _find(self) -> tuple[IndexedSpeaker, SpeakerVersion]:
        indexed = self._registrar.find(self._namespace, self._name, self._begun)
        version = indexed.speaker.default
        self.speaker_id = SpeakerId.of_record(self._namespace, version.record)
        if not version.extractable:
            raise CacheUnsupported(
                f"Version {version.number} was registered with a ready speaker embedding of "
                f"{version.record.embedding_width} numbers: there is nothing to extract. "
                "Re-upload with an audio file.",
                param="name",
            )
        return indexed, version

    def _failures(
        self, statuses: Sequence[ProfileStatus], pending_job_ids: Sequence[str], ended: Sequence[JobRecord]
    ) -> list[str]:
        """A failed profile; and a job of ours that failed although what was there before still serves."""
        failed = [f"{one.profile.name}: {one.error}" for one in statuses if one.state == "failed"]
        if failed or pending_job_ids:
            return failed
        return [
            f"{one.profile}: {one.error['code']}: {one.error['message']}"
            for one in ended
            if one.state == "failed" and one.error
        ]

    def body(self, look: Look) -> CacheStatus:
        """The answer, as long as nothing failed."""
        state = worst(look.statuses)
        return CacheStatus(
            voice=look.version.record.key,
            # By force: what was there before serves meanwhile.
            cache_status="processing" if look.pending_job_ids and state == "ready" else state,
            message=self._message,
            job_id=look.job_id,
            version=look.version.number,
            reason=next((one.reason for one in look.statuses if one.reason), None),
        )

    def raise_if_failed(self, look: Look) -> None:
        if look.finished and look.failed:
            kept = worst(look.statuses) == "ready"
            reasons = "; ".join(look.failed) + (" What was there before still serves." if kept else "")
            raise ArtifactFailed(
                f"Voice '{look.version.record.key}' could not be extracted. {reasons}", param="name"
            )
