"""A speaker by its id, and as it was read: its document, and the jobs that were open at that moment. Pure."""

import re
from dataclasses import dataclass
from typing import Self

from services.shared.model.document import SpeakerDocument
from speaker_registry.names import SpeakerName, is_namespace, slug_of

_HASHED_SLUG = re.compile(r"x-[0-9a-f]{40}")


def is_slug(text: str) -> bool:
    """Return whether `slug_of` can have made the text."""
    return slug_of(text) == text or is_hashed_slug(text)


def is_hashed_slug(slug: str) -> bool:
    """Return whether the slug is a hash: the speaker's key does not fit into the bucket's alphabet."""
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
        """Parse what `str` returned."""
        namespace, slug = text.split("/")
        return cls(namespace, slug)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.slug}"


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
