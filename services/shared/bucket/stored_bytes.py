"""The bytes that documents name: clips, their renditions and artifacts.

They are written once and never changed, and read back only if their digest is right. Bytes that no document
names are removed only after a change of the document has fenced their ids, see `maintenance/garbage_sweep`.
Code whose change was refused must not remove its bytes without that, because the change may have been made.
"""

import structlog

from services.shared.bucket.layout import artifact_key, bytes_prefix, clip_key, rendition_key
from services.shared.bucket.store import Listing, ObjectUnavailable, Store
from services.shared.model.records import ArtifactRecord, ClipRecord, Version
from services.shared.model.speaker import SpeakerId
from services.shared.telemetry.metrics import INTEGRITY_FAILURES
from speaker_registry.artifact import sha256_digest
from speaker_registry.errors import AudioNotFound, SpeakerRegistryError, VoiceUnreadable

log = structlog.get_logger(__name__)

_READS = 2
"""The number of times that bytes are read before they count as lost. A single answer may be wrong."""


class Unsound(SpeakerRegistryError):
    """Stored bytes are missing or damaged. The attribute `how` is `missing` or `damaged`."""

    def __init__(self, how: str) -> None:
        super().__init__(f"The bytes are {how}. The request id leads operators to the log lines about it.")
        self.how = how


class StoredBytes:
    """Stores bytes and reads them back. Every method may raise `Unavailable`, and those that read bytes raise
    `VoiceUnreadable` if the store fails for this one object. No time is named after which a retry helps, so
    that clients go on with other voices.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def store_clip(self, speaker_id: SpeakerId, vuid: str, uploaded: bytes, rendition: bytes) -> None:
        """Store a clip as it was uploaded, and as it was decoded."""
        self.store_upload(speaker_id, vuid, uploaded)
        self.store_rendition(speaker_id, vuid, rendition)

    def store_upload(self, speaker_id: SpeakerId, vuid: str, uploaded: bytes) -> None:
        """Store a clip as it was uploaded. The same bytes may be stored again."""
        self._store.put(clip_key(speaker_id, vuid), uploaded)

    def store_rendition(self, speaker_id: SpeakerId, vuid: str, rendition: bytes) -> None:
        """Store a clip as it was decoded. The same bytes may be stored again."""
        self._store.put(rendition_key(speaker_id, vuid), rendition)

    def store_artifact(self, speaker_id: SpeakerId, vuid: str, object_id: str, data: bytes) -> None:
        """Store an artifact's file under an id that was never used before."""
        self._store.put(artifact_key(speaker_id, vuid, object_id), data)

    def clip(self, speaker_id: SpeakerId, version: Version) -> bytes:
        """Return the clip as it was uploaded. Raises `AudioNotFound` or `Unsound`."""
        digest = f"sha256:{clip_of(version).sha256}"
        return self._read(clip_key(speaker_id, version.vuid), digest)

    def rendition(self, speaker_id: SpeakerId, version: Version) -> bytes:
        """Return the clip as it was decoded. Raises `AudioNotFound` or `Unsound`."""
        digest = f"sha256:{clip_of(version).rendition_sha256}"
        return self._read(rendition_key(speaker_id, version.vuid), digest)

    def artifact(self, speaker_id: SpeakerId, version: Version, record: ArtifactRecord) -> bytes:
        """Return an artifact's file. Raises `Unsound`."""
        return self._read(artifact_key(speaker_id, version.vuid, record.object), record.digest)

    def artifact_address(
        self, speaker_id: SpeakerId, version: Version, record: ArtifactRecord, seconds: int
    ) -> str | None:
        """Return an address that serves an artifact's file for this many seconds, as `Store.address` does."""
        return self._store.address(artifact_key(speaker_id, version.vuid, record.object), seconds)

    def has_artifact(self, speaker_id: SpeakerId, version: Version, record: ArtifactRecord) -> bool:
        """Return whether an artifact's file exists and its digest is right."""
        try:
            self.artifact(speaker_id, version, record)
        except Unsound:
            return False
        return True

    def listing(self, speaker_id: SpeakerId) -> Listing:
        """List everything that is stored for a speaker."""
        return self._store.list(bytes_prefix(speaker_id))

    def remove(self, keys: list[str]) -> None:
        """Remove objects that no document may name any more."""
        self._store.delete(keys)

    def remove_artifact(self, speaker_id: SpeakerId, vuid: str, object_id: str) -> None:
        """Remove an artifact's file that no document may name any more."""
        self.remove([artifact_key(speaker_id, vuid, object_id)])

    def _read(self, key: str, digest: str) -> bytes:
        how = "missing"
        for _ in range(_READS):
            try:
                data = self._store.get(key)
            except FileNotFoundError:
                how = "missing"
                continue
            except ObjectUnavailable as error:
                raise VoiceUnreadable(
                    "The object store does not give access to a clip or artifact of this voice now."
                ) from error
            if sha256_digest(data) == digest:
                return data
            how = "damaged"
        log.error(f"integrity.{how}", key=key, digest=digest)
        INTEGRITY_FAILURES.labels(how).inc()
        raise Unsound(how)


def clip_of(version: Version) -> ClipRecord:
    """Return the record of a version's clip. Raises `AudioNotFound` if the version has none."""
    if version.clip is None:
        raise AudioNotFound(
            f"Version {version.number} of voice '{version.name}' was registered with a precomputed speaker "
            "embedding: there is no clip.",
            param="ref",
        )
    return version.clip
