"""Starts extractions: the requested ones, and those of artifacts whose bytes the bucket has lost.

At most one job is under way for each artifact. Further requests join it. Knows no HTTP and no encoder.
"""

from collections.abc import Sequence
from typing import Any

import structlog

from services.shared.bucket.blobs import Unsound, read_artifact
from services.shared.bucket.facts import commit
from services.shared.bucket.keys import SpeakerId
from services.shared.index.jobs import SeenJobs
from services.shared.index.speaker_index import ClaimResult
from services.shared.model.domain import ArtifactRecord, SpeakerVersion, VoidFact, without_build
from services.shared.queue.rq_jobs import preparation_queue, queue_name
from services.shared.registry.parts import RegistryParts
from services.shared.registry.status import cache_unsupported, unsupported_reason
from services.shared.telemetry import tracing
from services.shared.telemetry.metrics import REPAIRS
from speaker_registry.engine import Profile
from speaker_registry.errors import QuotaExceeded

log = structlog.get_logger()


class Extractions:
    """Claims extractions in the index, enqueues their jobs, and remembers them in `seen_jobs`."""

    def __init__(self, parts: RegistryParts) -> None:
        self._store = parts.store
        self._index = parts.index
        self._profiles = parts.profile_records
        self._catalogue = parts.catalogue
        self._dispatcher = parts.dispatcher
        self._settings = parts.settings
        self._clock = parts.clock
        self.seen_jobs = SeenJobs()

    def ensure(
        self, speaker_id: SpeakerId, version: SpeakerVersion, profiles: Sequence[str], *, force: bool = False
    ) -> dict[str, ClaimResult]:
        """Make sure that each profile's artifact exists or is being made. Pending jobs are joined.

        Args:
            force: extract again even if there is an artifact or a failure. An existing artifact is served
                until the new one is ready.

        Raises:
            ProfileUnknown.
            CacheUnsupported: nothing can be extracted for one of the profiles.
            QuotaExceeded: an artifact was made as often as the settings accept.
        """
        claims = {}
        for name in profiles:
            profile = self._catalogue.get(name)
            if version.record.given and version.artifact(name) is not None and not force:
                claims[name] = ClaimResult("ready")
                continue
            if reason := unsupported_reason(version, profile):
                raise cache_unsupported(reason)
            claims[name] = self.claim(speaker_id, version, profile, force=force, limited=True)
            if claims[name].outcome == "full":
                raise too_many_builds(version, name, self._settings.max_builds)
        return claims

    def claim(
        self,
        speaker_id: SpeakerId,
        version: SpeakerVersion,
        profile: Profile,
        *,
        force: bool = False,
        limited: bool = False,
        steal: str | None = None,
        ahead: str | None = None,
    ) -> ClaimResult:
        """Claim an extraction, and enqueue its job unless there is one to join.

        Args:
            ahead: the fingerprint of an encoder that is to make the artifact ahead of its promotion. By
                default the profile's current encoder makes it.
            limited: do not make an artifact again that was made as often as the settings accept. The outcome
                is `full` then.
            steal: the id of a lost job whose pending extraction the new job takes over.
        """
        fingerprint = ahead or self._profiles.fingerprint(profile.name)
        queue = preparation_queue(profile.name, ahead) if ahead else queue_name(profile.name)
        job_id = f"job_{self._clock.new_id()}"

        job: dict[str, Any] = {
            "id": job_id,
            "ns": speaker_id.namespace,
            "slug": speaker_id.slug,
            "name": version.record.name,
            "vuid": version.vuid,
            "number": version.number,
            "profile": profile.name,
            "fingerprint": fingerprint,
            "forced": force,
            "max_attempts": self._settings.max_attempts,
            "queue": queue,
            "attempt": 0,
            **({"traceparent": parent} if (parent := tracing.traceparent()) else {}),
        }
        claim = self._index.claim(
            speaker_id,
            vuid=version.vuid,
            profile=profile.name,
            fingerprint=fingerprint,
            base=without_build(version.artifact_key(profile.name, fingerprint, 0)),
            force=force,
            max_builds=self._settings.max_builds if limited else None,
            steal=steal,
            job=job,
        )
        if claim.job_id:  # the new job, or the job to join
            known = job | {"id": claim.job_id}
            self.seen_jobs.put_claimed(known, build=claim.build, at=self._clock.now())
        if claim.outcome == "claimed":
            self._dispatcher.enqueue(job_id, queue, {"job": job_id, "speaker": str(speaker_id)})
        return claim

    def artifact_or_replacement(
        self, speaker_id: SpeakerId, version: SpeakerVersion, record: ArtifactRecord
    ) -> bytes | None:
        """Return the artifact's file. If the file is lost, start its extraction again and return None.

        Raises:
            Unsound: the file is lost, and only its owner can upload it again. VoiceNotFound. Unavailable.
        """
        try:
            return read_artifact(self._store, speaker_id, version, record)
        except Unsound:
            profile = self._catalogue.get(record.profile)
            if record in version.record.given or unsupported_reason(version, profile) is not None:
                raise
        akey = version.artifact_key(record.profile, record.fingerprint, record.build)
        fact = VoidFact(version.vuid, akey)
        commit(self._store, speaker_id.void_key(fact, self._clock.new_id()))
        log.error("artifact.void", vuid=version.vuid, profile=record.profile, digest=record.digest)
        REPAIRS.labels("artifact_void").inc()
        self._index.apply_void(speaker_id, fact)
        self.claim(speaker_id, version, profile)
        return None


def too_many_builds(version: SpeakerVersion, profile: str, most: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"The artifact of version {version.number} of voice '{version.record.name}' for profile '{profile}' "
        f"was made {most} times already, which is as often as SPEAKER_MAX_BUILDS accepts. Register the clip "
        "as a new version with dedupe=false, or raise the cap.",
        param="profile",
    )
