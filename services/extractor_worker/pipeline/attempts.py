"""Begins, follows and ends attempts for the pipeline, which has no other access to bucket and Redis.

Each method is one verb of `services.shared.registry`. This module knows no encoder.
"""

import time
from collections.abc import Mapping

import numpy as np
import structlog

from services.shared.audio import ReferenceAudio
from services.shared.bucket.store import Store
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.speaker import SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.registry.fail import fail
from services.shared.registry.profiles import Profiles
from services.shared.registry.publish import Attempt, Provenance, publish, start
from services.shared.registry.repair import Decode, sound_rendition
from services.shared.registry.speakers import Speakers
from services.shared.view.job_records import Stage
from speaker_registry.errors import ExtractorFailed, SpeakerRegistryError, Unavailable, VoiceUnreadable

log = structlog.get_logger()

CUT_OFF_SECONDS = 60.0
"""A worker that cannot reach the bucket for this long counts as cut off. A store restarts faster."""
_FRESH_SECONDS = 5.0
"""An older check is repeated, because the steps after it may have succeeded."""


class Attempts:
    """Begins, follows and ends attempts, and remembers since when the bucket cannot be used, because it does
    not answer or stores nothing.

    Only `take`, `read_clip`, `publish` and `fail` may raise `Unavailable`.
    """

    def __init__(
        self,
        *,
        store: Store,
        speakers: Speakers,
        blobs: StoredBytes,
        jobs: Jobs,
        profiles: Profiles,
        decode: Decode,
    ) -> None:
        """Create the object. `decode` decodes uploaded clips whose decoded form the bucket has lost."""
        self._store = store
        self._speakers = speakers
        self._blobs = blobs
        self._jobs = jobs
        self._profiles = profiles
        self._decode = decode
        self._away_since: float | None = None
        """The time of the first check that failed. None if the last one succeeded."""
        self._checked_at = 0.0
        """The time of the last check that failed."""

    def in_service(self) -> bool:
        """Return whether the bucket stores and reads objects, and Redis takes writes and holds the view in
        use.
        """
        return self._bucket_serves() and self._index_serves()

    def is_cut_off(self) -> bool:
        """Return whether this worker could not use the bucket for `CUT_OFF_SECONDS`, and can use Redis.
        Other workers may be able to use the bucket, so they should get its jobs.
        """
        since = self._away_since
        if since is None or time.monotonic() - since < CUT_OFF_SECONDS:
            return False
        is_fresh = time.monotonic() - self._checked_at < _FRESH_SECONDS
        return (is_fresh or not self._bucket_serves()) and self._index_serves()

    def may_take(self) -> bool:
        """Return whether the worker may take jobs. If the last check of the bucket failed, another one has to
        succeed first.
        """
        return self._away_since is None or self._bucket_serves()

    def _bucket_serves(self) -> bool:
        try:
            self._store.check_writing()
        except Unavailable as error:
            self._checked_at = time.monotonic()
            if self._away_since is None:
                self._away_since = time.monotonic()
                log.warning("bucket.away", reason=error.message)
            return False
        if self._away_since is not None:
            self._away_since = None
            log.info("bucket.answers")
        return True

    def _index_serves(self) -> bool:
        try:
            self._speakers.generation.check()
        except Unavailable:
            return False
        return True

    def take(self, job_id: str, speaker_id: SpeakerId, provenance: Provenance) -> Attempt | None:
        """Begin an attempt at a job. Returns None if the job or its artifact is not wanted any more.

        Raises:
            EncoderReplaced: another worker has to do it. The queue then gives it to one.
            LeaseExpired: the worker stopped in the last attempt. The job is given up.
        """
        return start(self._speakers, self._jobs, self._profiles, speaker_id, job_id, provenance=provenance)

    def read_clip(self, attempt: Attempt) -> ReferenceAudio:
        """Return the decoded clip of the version. If the bucket has lost it, it is restored.

        Raises:
            ClipDamaged: the bucket has lost the clip, and it cannot be restored.
            ExtractorFailed: the bucket serves other objects but not the clip, or the clip could not be
                decoded again. The job is tried again later, and other jobs do not wait for it.
        """
        try:
            return sound_rendition(self._blobs, attempt.speaker_id, attempt.version, self._decode)
        except VoiceUnreadable:
            raise ExtractorFailed("The clip cannot be read from the bucket now.") from None

    def progress(self, attempt: Attempt, stage: Stage) -> None:
        """Report the stage of a job to callers that follow it. Failures are logged and ignored."""
        try:
            self._jobs.report(attempt.speaker_id, attempt.job, attempt.number, stage)
        except Unavailable as error:
            log.warning("job.progress_lost", job_id=attempt.job_id, error=str(error))

    def publish(
        self, attempt: Attempt, tensors: Mapping[str, np.ndarray], used_seconds: float | None = None
    ) -> bool:
        """Publish an artifact, as `publish.publish` does. Returns False if it came too late to count."""
        return publish(
            self._speakers,
            self._blobs,
            self._jobs,
            self._profiles,
            attempt,
            tensors=tensors,
            used_seconds=used_seconds,
        )

    def fail(self, attempt: Attempt, error: SpeakerRegistryError) -> None:
        """Record that an attempt failed, as `fail.fail` does."""
        fail(self._speakers, self._jobs, self._profiles, attempt, error)
