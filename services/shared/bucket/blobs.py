"""Stores the bytes that a version's facts name, and reads them back only if their digest is right."""

import structlog

from services.shared.bucket.facts import read_speaker
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Store
from services.shared.bucket.stored_bytes import Unsound
from services.shared.model.domain import ArtifactRecord, ClipRecord, SpeakerVersion, given_key
from services.shared.telemetry.metrics import INTEGRITY_FAILURES
from speaker_registry.artifact import sha256_digest
from speaker_registry.errors import AudioNotFound, VoiceNotFound

log = structlog.get_logger()


_LOOKS = 2
"""The number of times that bytes are read before they count as lost. A single answer may be wrong."""


def store_clip(store: Store, speaker_id: SpeakerId, vuid: str, sha256: str, data: bytes) -> None:
    """Store a clip, as uploaded or as decoded. `sha256` is the digest of the data. Raises `Unavailable`."""
    store.put(speaker_id.blob_key(vuid, sha256), data)


def store_artifact(
    store: Store, speaker_id: SpeakerId, vuid: str, akey: str, record: ArtifactRecord, *, data: bytes
) -> str:
    """Store an artifact's safetensors file and return its key. Raises `Unavailable`."""
    key = speaker_id.artifact_blob_key(vuid, akey, record)
    store.put(key, data)
    return key


def read_artifact(
    store: Store, speaker_id: SpeakerId, version: SpeakerVersion, record: ArtifactRecord
) -> bytes:
    """Return an artifact's safetensors file.

    Raises:
        VoiceNotFound: the voice was deleted meanwhile.
        Unsound: the bytes are missing or damaged.
    """
    key = _artifact_key(speaker_id, version, record)
    return _read(store, speaker_id, version, key, record.digest)


def artifact_address(
    store: Store, speaker_id: SpeakerId, version: SpeakerVersion, record: ArtifactRecord, seconds: int
) -> str | None:
    """Return an address that serves an artifact's file for so many seconds, as `Store.address` does."""
    return store.address(_artifact_key(speaker_id, version, record), seconds)


def _artifact_key(speaker_id: SpeakerId, version: SpeakerVersion, record: ArtifactRecord) -> str:
    if record in version.record.given:
        akey = given_key(record.profile)
    else:
        akey = version.artifact_key(record.profile, record.fingerprint, record.build)
    return speaker_id.artifact_blob_key(version.vuid, akey, record)


def clip_of(version: SpeakerVersion) -> ClipRecord:
    """Return the record of a version's clip. Raises `AudioNotFound` if the version has none."""
    clip = version.record.clip
    if clip is None:
        raise AudioNotFound(
            f"Version {version.number} of voice '{version.record.name}' was registered with a "
            "precomputed speaker embedding: there is no clip.",
            param="ref",
        )
    return clip


def read_clip(store: Store, speaker_id: SpeakerId, version: SpeakerVersion) -> bytes:
    """Return the clip as it was uploaded.

    Raises:
        AudioNotFound: the version was made from a ready embedding.
        VoiceNotFound: the voice was deleted meanwhile.
        Unsound: the bytes are missing or damaged.
    """
    clip = clip_of(version)
    key = speaker_id.blob_key(version.vuid, clip.sha256)
    return _read(store, speaker_id, version, key, f"sha256:{clip.sha256}")


def read_rendition(store: Store, speaker_id: SpeakerId, version: SpeakerVersion) -> bytes:
    """Return the decoded clip as it was stored. Raises the same errors as `read_clip`."""
    sha256 = clip_of(version).rendition_sha256
    return _read(store, speaker_id, version, speaker_id.blob_key(version.vuid, sha256), f"sha256:{sha256}")


def _read(store: Store, speaker_id: SpeakerId, version: SpeakerVersion, key: str, digest: str) -> bytes:
    how = ""
    for _ in range(_LOOKS):
        data = _get(store, key)
        if data is not None and sha256_digest(data) == digest:
            return data
        how = "missing" if data is None else "damaged"
    if how == "missing" and _is_deleted(store, speaker_id, version.vuid):
        raise VoiceNotFound(f"Voice '{version.record.name}' not found", param="name")
    log.error(f"integrity.{how}", vuid=version.vuid, digest=digest)
    INTEGRITY_FAILURES.labels(how).inc()
    raise Unsound(how)


def _is_deleted(store: Store, speaker_id: SpeakerId, vuid: str) -> bool:
    """Return whether a version was certainly deleted. A version whose record cannot be read now may exist."""
    truth = read_speaker(store, speaker_id)
    return truth.by_vuid(vuid) is None and not truth.damaged and not truth.unreadable


def _get(store: Store, key: str) -> bytes | None:
    """Return the object's bytes, or None if the store says that there is no such object."""
    try:
        return store.get(key)
    except FileNotFoundError:
        return None
