"""The sources of versions: a clip, or a precomputed speaker embedding."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from services.shared.audio import DecodedClip
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.packaging import package
from services.shared.model.profiles import ProfileCatalogue
from services.shared.model.records import GIVEN_FINGERPRINT, ClipRecord, Version
from services.shared.model.speaker import SpeakerId
from services.shared.registry.repair import restore_clip
from speaker_registry.engine import Profile
from speaker_registry.errors import EmbeddingWidthMismatch


def profiles_taking(catalogue: ProfileCatalogue, embedding: np.ndarray) -> list[Profile]:
    """Return the required profiles that take an embedding of this width (float32 [D]).

    All these profiles must use the same model, because embeddings of different encoders are not
    interchangeable, even with the same width.

    Raises:
        EmbeddingWidthMismatch: no required profile takes that width, or profiles of several models do.
    """
    profiles = catalogue.taking_embeddings_of(len(embedding))
    if not profiles:
        widths = sorted({one.embedding_width for one in catalogue.required_profiles if one.embedding_width})
        raise EmbeddingWidthMismatch(
            f"The embedding has {len(embedding)} elements; the required profiles take {widths}."
        )
    if len({profile.model_type for profile in profiles}) > 1:
        names = ", ".join(profile.name for profile in profiles)
        raise EmbeddingWidthMismatch(
            f"The embedding has {len(embedding)} elements, and several required profiles take that "
            f"many, of different encoders: {names}. Register a clip, and upload the embedding for its "
            "profile by PUT /v1/voices/{name}/versions/{version}/artifacts/{profile}."
        )
    return profiles


class Source(Protocol):
    """The source of one version."""

    sha256: str
    size: int
    """The size of the source in the bucket, in bytes."""

    def describe(self, version: Version) -> Version:
        """Return the version with the fields that the source determines."""

    def store(self, blobs: StoredBytes, speaker_id: SpeakerId, vuid: str) -> None:
        """Store the bytes that do not depend on the version's number."""

    def number(self, blobs: StoredBytes, speaker_id: SpeakerId, version: Version) -> Version:
        """Store the files that contain the version's number, and return the version with their records."""

    def restore(self, blobs: StoredBytes, speaker_id: SpeakerId, version: Version) -> None:
        """Store the source of a version again, if the bucket has lost it."""


class ClipSource:
    """An uploaded clip that was decoded and accepted."""

    def __init__(self, uploaded: bytes, decoded: DecodedClip) -> None:
        self._uploaded = uploaded
        self._rendition = decoded.audio.to_bytes()
        self.record = ClipRecord(
            sha256=hashlib.sha256(uploaded).hexdigest(),
            size=len(uploaded),
            mime_type=decoded.mime_type,
            seconds=round(decoded.audio.seconds, 6),
            sample_rate=decoded.audio.sample_rate,
            channels=decoded.channels,
            rendition_sha256=hashlib.sha256(self._rendition).hexdigest(),
        )
        self.sha256, self.size = self.record.sha256, self.record.size

    def describe(self, version: Version) -> Version:
        return version.having(source="audio", clip=self.record)

    def store(self, blobs: StoredBytes, speaker_id: SpeakerId, vuid: str) -> None:
        blobs.store_clip(speaker_id, vuid, self._uploaded, self._rendition)

    def number(self, blobs: StoredBytes, speaker_id: SpeakerId, version: Version) -> Version:  # noqa: ARG002
        return version

    def restore(self, blobs: StoredBytes, speaker_id: SpeakerId, version: Version) -> None:
        restore_clip(blobs, speaker_id, version, self._uploaded)


@dataclass(frozen=True, slots=True)
class _Packed:
    """The files of a version with a given number."""

    number: int
    created_at: int
    version: Version


class EmbeddingSource:
    """A speaker embedding (float32 [D], finite). It becomes the artifact of every profile that takes it."""

    def __init__(self, embedding: np.ndarray, profiles: Sequence[Profile], new_id: Callable[[], str]) -> None:
        """Use an embedding for `profiles`, which must use the same model, because embeddings of different
        encoders differ.
        """
        self._embedding = embedding
        self._profiles = profiles
        self._new_id = new_id
        self._packed: _Packed | None = None
        self.sha256 = hashlib.sha256(embedding.tobytes()).hexdigest()
        self.size = embedding.nbytes * len(profiles)

    def describe(self, version: Version) -> Version:
        return version.having(source="embedding", embedding_width=len(self._embedding))

    def store(self, blobs: StoredBytes, speaker_id: SpeakerId, vuid: str) -> None:
        """Store nothing, because the files contain the version's number, which only the change knows."""

    def restore(self, blobs: StoredBytes, speaker_id: SpeakerId, version: Version) -> None:
        """Restore nothing, because an embedding has no files except its artifacts."""

    def number(self, blobs: StoredBytes, speaker_id: SpeakerId, version: Version) -> Version:
        """Store the artifacts. They are packed again if a conflict has changed the version's number."""
        known = self._packed
        if known is None or (known.number, known.created_at) != (version.number, version.created_at):
            for profile in self._profiles:
                version = self._with_artifact(blobs, speaker_id, version, profile)
            known = self._packed = _Packed(version.number, version.created_at, version)
        return known.version

    def _with_artifact(
        self, blobs: StoredBytes, speaker_id: SpeakerId, version: Version, profile: Profile
    ) -> Version:
        tensors = {"speaker_embedding": self._embedding}
        data, record = package(
            version, profile, tensors, fingerprint=GIVEN_FINGERPRINT, object_id=self._new_id()
        )
        record = record.having(brought=True)
        blobs.store_artifact(speaker_id, version.vuid, record.object, data)
        return version.having(artifacts={**version.artifacts, profile.name: (record,)}).with_used_build(
            profile.name, GIVEN_FINGERPRINT, record.build
        )
