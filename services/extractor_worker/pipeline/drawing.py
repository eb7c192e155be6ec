"""The handler of jobs that ask for the pictures of a clip. This module knows no encoder, and does not draw
itself.
"""

from collections.abc import Callable, Mapping, Sequence

import structlog
from structlog.contextvars import bound_contextvars

from services.extractor_worker.jobs.leases import SUPERSEDED
from services.shared.audio import ReferenceAudio
from services.shared.bucket.pictures import store_pictures
from services.shared.bucket.store import Store
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.pictures import Picture
from services.shared.model.records import Version
from services.shared.model.speaker import SpeakerId
from services.shared.queue.rq_jobs import QueuedJob
from services.shared.registry.repair import Decode, sound_rendition
from services.shared.registry.speakers import Speakers
from speaker_registry.errors import ClipDamaged, ExtractorFailed, SpeakerRegistryError, Unavailable

log = structlog.get_logger()

Draw = Callable[[ReferenceAudio], Mapping[Picture, bytes]]
"""Returns the pictures of a clip."""


class Drawing:
    """Draws the pictures of clips. A call with jobs returns an outcome or an exception for each of them.

    A picture can be drawn again at any time, so an outage or a lost clip ends a job without counting as a
    failure. The next request for the picture makes another job.
    """

    def __init__(
        self, store: Store, speakers: Speakers, blobs: StoredBytes, decode: Decode, draw: Draw
    ) -> None:
        self._store = store
        self._speakers = speakers
        self._blobs = blobs
        self._decode = decode
        self._draw = draw
        self.on_progress: Callable[[], None] = lambda: None
        """Called after each job, which shows that the worker does not hang."""

    def __call__(self, jobs: Sequence[QueuedJob]) -> list[object]:
        return [self._outcome(job) for job in jobs]

    def _outcome(self, job: QueuedJob) -> object:
        with bound_contextvars(job_id=job.id):
            try:
                speaker_id = SpeakerId.parse(str(job.kwargs["speaker"]))
                return self._draw_version(speaker_id, str(job.kwargs["vuid"]))
            except Unavailable as error:
                log.warning("drawing.put_off", reason=error.message)
                return "put off"
            except ClipDamaged as error:
                log.warning("drawing.put_off", reason=error.message)
                return {error.code: error.message}
            except SpeakerRegistryError as error:
                return error
            except Exception as error:
                log.exception("drawing.crashed")  # the text may quote the clip, so it is not in the job
                return ExtractorFailed(f"The drawing failed with {type(error).__name__}.")
            finally:
                self.on_progress()

    def _draw_version(self, speaker_id: SpeakerId, vuid: str) -> str:
        version = self._version(speaker_id, vuid)
        if version is None or version.clip is None:
            return SUPERSEDED
        drawn = self._draw(sound_rendition(self._blobs, speaker_id, version, self._decode))
        if self._version(speaker_id, vuid) is None:
            return SUPERSEDED  # deleted meanwhile, so nothing may be stored for it
        store_pictures(self._store, speaker_id, vuid, drawn)
        return "drawn"

    def _version(self, speaker_id: SpeakerId, vuid: str) -> Version | None:
        return self._speakers.read(speaker_id).document.version(vuid)
