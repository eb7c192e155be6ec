"""The bytes that a version's facts tell of: read from the bucket, and handed on only if they are those."""

import structlog

from services.shared.domain import ArtifactRecord, ClipRecord, SpeakerVersion, given_key
from services.shared.facts import SpeakerId, read_speaker
from services.shared.metrics import INTEGRITY_FAILURES
from services.shared.store import Store
from speaker_registry.artifact import sha256_digest
from speaker_registry.errors import AudioNotFound, SpeakerRegistryError, VoiceNotFound

log = structlog.get_logger()


def read_artifact(
    store: Store, speaker_id: SpeakerId, version: SpeakerVersion, record: ArtifactRecord
) -> bytes:
    """The safetensors file.

    Raises:
        VoiceNotFound: the voice was deleted meanwhile. SpeakerRegistryError: missing, or damaged.
    """
    if record in version.record.given:
        akey = given_key(record.profile)
    else:
        akey = version.artifact_key(record.profile, record.fingerprint, record.build)
    key = speaker_id.artifact_blob_key(version.vuid, akey, record)
    return _read(store, speaker_id, version, key, record.digest)


def clip_of(version: SpeakerVersion) -> ClipRecord:
    """Raises `AudioNotFound`."""
    clip = version.record.clip
    if clip is None:
        raise AudioNotFound(
            f"Version {version.number} of voice '{version.record.name}' was registered with a ready speaker "
            "embedding: there is no clip.",
            param="ref",
        )
    return clip


def read_clip(store: Store, speaker_id: SpeakerId, version: SpeakerVersion) -> bytes:
    """The clip as it was uploaded.

    Raises:
        AudioNotFound: the version was made from a ready embedding. Else as `read_artifact`.
    """
    clip = clip_of(version)
    key = speaker_id.blob_key(version.vuid, clip.sha256)
    return _read(store, speaker_id, version, key, f"sha256:{clip.sha256}")


def _read(store: Store, speaker_id: SpeakerId, version: SpeakerVersion, key: str, digest: str) -> bytes:
    try:
        data = store.get(key)
    except FileNotFoundError:
        if read_speaker(store, speaker_id).by_vuid(version.vuid) is None:
            raise VoiceNotFound(f"Voice '{version.record.name}' not found", param="name") from None
        raise _unsound("missing", version, digest) from None
    if sha256_digest(data) != digest:
        raise _unsound("damaged", version, digest)
    return data


def _unsound(how: str, version: SpeakerVersion, digest: str) -> SpeakerRegistryError:
    log.error(f"integrity.{how}", vuid=version.vuid, digest=digest)
    INTEGRITY_FAILURES.labels(how).inc()
    return SpeakerRegistryError(f"The bytes are {how}; the request id finds it in our logs.")
