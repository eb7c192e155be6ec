"""A speaker as it was read: its document, and the jobs that were open at that moment. Pure."""

from dataclasses import dataclass

from services.shared.model.document import SpeakerDocument


@dataclass(frozen=True, slots=True)
class OpenJob:
    """The one job that has not ended for a version, a profile and a fingerprint."""

    vuid: str
    profile: str
    fingerprint: str
    """The fingerprint is empty while no worker has announced the profile."""
    job_id: str
    processing: bool
    mends: bool = False
    """True if the job makes an artifact again whose bytes are lost. Nothing is served in its place."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """A document with the open jobs that were seen beside it."""

    document: SpeakerDocument
    open_jobs: tuple[OpenJob, ...] = ()

    def open_job(self, vuid: str, profile: str, fingerprint: str | None) -> OpenJob | None:
        """Return the open job of this artifact.

        A job that has no fingerprint yet will be made with the current one.
        """
        return next(
            (
                job
                for job in self.open_jobs
                if (job.vuid, job.profile) == (vuid, profile)
                and (fingerprint is None or job.fingerprint in {"", fingerprint})
            ),
            None,
        )
