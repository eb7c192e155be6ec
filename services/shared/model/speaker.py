"""Ids of speakers, and a speaker as it was read: its document, and the jobs that were open then. Pure."""

import re
from dataclasses import dataclass
from typing import Self

from services.shared.model.document import SpeakerDocument
from speaker_registry.names import SpeakerName, is_namespace, slug_of

_HASHED_SLUG = re.compile(r"x-[0-9a-f]{40}")


def is_slug(text: str) -> bool:
    """Return whether the text could be a result of `slug_of`."""
    return slug_of(text) == text or is_hashed_slug(text)


def is_hashed_slug(slug: str) -> bool:
    """Return whether the slug is a hash, because the speaker's key has characters that the bucket does not
    allow.
    """
    return _HASHED_SLUG.fullmatch(slug) is not None


def namespace_of(speaker_id: str) -> str:
    """Return the namespace in the text of a `SpeakerId`. The text is not checked."""
    return speaker_id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class SpeakerId:
    """Identifies a speaker in bucket and Redis, by its namespace and the slug of its name's key."""

    namespace: str
    slug: str

    def __post_init__(self) -> None:
        if not is_namespace(self.namespace):
            raise ValueError(f"namespace {self.namespace!r} is not [a-z0-9-], 1 to 32 characters")

    @classmethod
    def of(cls, namespace: str, name: SpeakerName) -> Self:
        return cls(namespace, slug_of(name.key))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that `str` returned."""
        namespace, slug = text.split("/")
        return cls(namespace, slug)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.slug}"


@dataclass(frozen=True, slots=True)
class OpenJob:
    """The only unfinished job for a version, a profile and a fingerprint."""

    vuid: str
    profile: str
    fingerprint: str
    """The fingerprint of the encoder. It is empty while no worker has announced the profile."""
    job_id: str
    processing: bool
    mends: bool = False
    """True if the job replaces an artifact whose bytes are lost. No other artifact is served in the
    meantime.
    """


@dataclass(frozen=True, slots=True)
class Speaker:
    """A speaker's document with the open jobs that were read together with it."""

    document: SpeakerDocument
    open_jobs: tuple[OpenJob, ...] = ()

    def open_job(self, vuid: str, profile: str, fingerprint: str | None) -> OpenJob | None:
        """Return the open job of this artifact.

        A job without a fingerprint will use the current encoder.
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
