"""Carries out one `cache` call: starts missing extractions, and tracks their jobs. This module knows no
HTTP.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from services.registry_api.operations.followed_jobs import follow
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.records import Version
from services.shared.model.speaker import SpeakerId
from services.shared.model.status import ProfileStatus, worst
from services.shared.queue.jobs import Jobs
from services.shared.registry.extract import extract
from services.shared.registry.lookup import find_version
from services.shared.registry.profiles import Profiles
from services.shared.registry.repair import artifact_or_replacement
from services.shared.registry.speakers import FoundSpeaker, Speakers
from services.shared.view.job_records import JobRecord
from speaker_registry.errors import ArtifactFailed, CacheUnsupported, JobNotFound, Unavailable
from speaker_registry.names import SpeakerName, key_of_name
from speaker_registry.schemas import CacheStatus

ALREADY_VALID = "Cache already exists and is valid"
"""vLLM-Omni's message."""


@dataclass(frozen=True, slots=True)
class CacheState:
    """The state of a voice's artifacts at one moment."""

    version: Version
    statuses: Sequence[ProfileStatus]
    pending_job_ids: Sequence[str]
    """Jobs of this call that have not ended."""
    failed: Sequence[str]
    """The name of each failed profile, and the reason."""
    jobs_ended: bool
    """True if the call had jobs and all of them have ended."""

    @property
    def finished(self) -> bool:
        return not self.pending_job_ids and (bool(self.failed) or worst(self.statuses) in {"ready", "failed"})

    @property
    def over(self) -> bool:
        """True if waiting is pointless. The jobs may have ended without making the voice ready, if the
        encoder was replaced meanwhile.
        """
        return self.finished or self.jobs_ended

    @property
    def job_id(self) -> str | None:
        """A job that callers can follow, unless the call has finished."""
        known = [*self.pending_job_ids, *(status.job_id for status in self.statuses if status.job_id)]
        return known[0] if known and not self.finished else None


class Precomputation:
    """One `cache` call for some profiles of a version. The version is the one that the reference stands for
    when the call begins.
    """

    def __init__(
        self,
        speakers: Speakers,
        blobs: StoredBytes,
        jobs: Jobs,
        profiles: Profiles,
        *,
        max_builds: int,
        namespace: str,
        name: SpeakerName,
        reference: int | str,
        profile: str | None,
    ) -> None:
        self._speakers = speakers
        self._blobs = blobs
        self._jobs = jobs
        self._profiles = profiles
        self._max_builds = max_builds
        self._namespace = namespace
        self._name = name
        self._names = [profile] if profile else [one.name for one in profiles.required]
        self._reference = reference
        """The reference to the version. After the first look-up it is a number, because an alias may move."""
        self._force = False
        self._message: str | None = None
        self._job_ids: list[str] = []
        """The jobs to wait for."""
        self.speaker_id = SpeakerId.of(namespace, name)
        """The speaker to wait for. It is certain only after `start`, because the name may be a voice's id."""

    def start(self, *, force: bool, count: Callable[[], object]) -> CacheState:
        """Start extracting the missing artifacts, or with `force` all of them, and remember the jobs to wait
        for.

        A profile that cannot be extracted counts as failed, but does not block the others. Without `force`,
        the bytes of ready artifacts are checked against their digests, and artifacts whose bytes are lost are
        extracted again. The function `count` counts jobs, as in `extract`.

        Raises:
            VoiceNotFound, VersionNotFound, AliasNotFound, ProfileUnknown, QuotaExceeded.
            CacheUnsupported: none of the profiles can be extracted.
            Unsound: the bytes of an uploaded artifact are lost. Only its owner can upload it again.
        """
        speaker, version = self._find()
        if not force and self._has_lost_files(speaker, version):
            speaker, version = self._find()
        statuses = [self._status(speaker, version, name) for name in self._names]
        possible = [one for one in statuses if not one.unsupported]
        self._force = force
        opened = self._extract(speaker, version, [one.profile.name for one in possible] or self._names, count)
        if not opened and all(one.state_of_current == "ready" for one in possible):
            self._message = ALREADY_VALID
        return self.current_state()

    def _has_lost_files(self, speaker: FoundSpeaker, version: Version) -> bool:
        """Read the files of the served artifacts, and start jobs that make lost ones again.

        Returns whether any is lost.
        """
        lost = False
        for name in self._names:
            record = self._status(speaker, version, name).artifact
            if record is not None:
                found = artifact_or_replacement(
                    self._speakers,
                    self._blobs,
                    self._jobs,
                    self._profiles,
                    speaker,
                    version=version,
                    profile=name,
                    record=record,
                )
                lost = lost or found is None
        return lost

    def _extract(
        self,
        speaker: FoundSpeaker,
        version: Version,
        names: Sequence[str],
        count: Callable[[], object] = lambda: None,
    ) -> Mapping[str, str]:
        opened = extract(
            self._jobs,
            self._profiles,
            speaker,
            version,
            names,
            force=self._force,
            max_builds=self._max_builds,
            count=count,
        )
        self._job_ids = list(opened.values())
        return opened

    def _status(self, speaker: FoundSpeaker, version: Version, name: str) -> ProfileStatus:
        return self._profiles.status(speaker, version, self._profiles.get(name))

    @property
    def question(self) -> Hashable:
        """A key that is equal for calls with the same answer, so that they can share reads."""
        about = (self._name.name, self._reference, tuple(self._names))
        return ("cache", *about, tuple(self._job_ids), self._force)

    def current_state(self) -> CacheState:
        """Return the current state. Raises `VoiceNotFound` or `VersionNotFound` if the voice was deleted."""
        speaker, version = self._find()
        statuses = [self._profiles.explained(self._status(speaker, version, name)) for name in self._names]
        pending_job_ids = [job.job_id for job in speaker.open_jobs if job.job_id in self._job_ids]
        ended = [] if pending_job_ids else self._records()
        pending_job_ids += [job.id for job in ended if not job.finished]
        if not pending_job_ids:
            pending_job_ids += self._restart_lost(speaker, version, ended)
        failed = self._failures(statuses, pending_job_ids, ended)
        jobs_ended = bool(ended) and not pending_job_ids
        return CacheState(version, statuses, pending_job_ids, failed, jobs_ended)

    def _records(self) -> list[JobRecord]:
        """Return the records of this call's jobs, as far as they are found."""
        found = []
        for job_id in self._job_ids:
            with suppress(JobNotFound):
                found.append(follow(self._speakers, self._jobs, self._profiles, self._namespace, job_id))
        return found

    def _restart_lost(self, speaker: FoundSpeaker, version: Version, ended: Sequence[JobRecord]) -> list[str]:
        """Restart extractions that were lost with Redis, and return the ids of their jobs.

        Housekeeping restarts only extractions of required profiles without an artifact. The caller was
        checked when `start` opened these jobs, and is not checked again, even if its key ends while it waits:
        a request that has started an extraction may finish (see `recheck`).
        """
        lost = [job for job in ended if job.state == "superseded"]
        if not lost:
            return []
        try:
            return list(self._extract(speaker, version, [job.profile for job in lost]).values())
        except Unavailable:  # Redis was lost just now; the next call retries
            return [job.id for job in lost]

    def _find(self) -> tuple[FoundSpeaker, Version]:
        speaker, version = find_version(
            self._speakers, self._profiles, self._namespace, self._name, self._reference
        )
        self._reference = version.number
        self.speaker_id = speaker.id
        if version.clip is None:
            raise CacheUnsupported(
                f"Version {version.number} was registered with a precomputed speaker embedding of "
                f"{version.embedding_width} numbers: there is nothing to extract. "
                "Re-upload with an audio file.",
                param="name",
            )
        return speaker, version

    def _failures(
        self, statuses: Sequence[ProfileStatus], pending_job_ids: Sequence[str], ended: Sequence[JobRecord]
    ) -> list[str]:
        """Return the failed profiles. Failed or canceled jobs of this call count even if an older artifact is
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
            voice=key_of_name(state.version.name),
            # After `force`, the older artifact is served until the new one is ready.
            cache_status="processing" if state.pending_job_ids and status == "ready" else status,
            message=self._message,
            job_id=state.job_id,
            version=state.version.number,
            untrained=any(map(self._profiles.untrained, state.statuses)),
            reason=next((one.reason for one in state.statuses if one.reason), None),
        )

    def raise_if_failed(self, state: CacheState) -> None:
        if state.finished and state.failed:
            kept = worst(state.statuses) == "ready"
            reasons = "; ".join(state.failed) + (" The previous artifact is still served." if kept else "")
            raise ArtifactFailed(
                f"Voice '{key_of_name(state.version.name)}' could not be extracted. {reasons}", param="name"
            )


def _fault(job: JobRecord) -> str:
    """Return the reason why a job ended without an artifact."""
    return f"{job.error['code']}: {job.error['message']}" if job.error else f"job {job.id} was {job.state}"
