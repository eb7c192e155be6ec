"""Every error of the registry, on both sides of the wire. Knows no HTTP: `problems` in the API
maps these classes to status codes, and the SDK raises the same class again from the `code` it reads.

SpeakerRegistryError
├── InvalidRequest                 the request is malformed; the message names the value and what is accepted
│   ├── InvalidVoiceName
│   ├── InvalidReference           `name@ref`, a version number or an alias that cannot be one
│   ├── InvalidAudio               the clip cannot serve as reference audio
│   │   ├── UnsupportedAudio       not one of the containers and codecs we read
│   │   ├── AudioTooShort
│   │   ├── AudioTooLong
│   │   └── AudioTruncated
│   ├── InvalidEmbedding
│   │   └── EmbeddingWidthMismatch
│   ├── InvalidArtifact            a safetensors file that is not what its profile says
│   │   └── DigestMismatch
│   ├── PayloadTooLarge
│   ├── CacheUnsupported           this voice lacks what this profile's artifact needs
│   └── IdempotencyKeyReused
├── InvalidApiKey                  none was sent, or one that is unknown, revoked or expired
├── PermissionDenied               the key is good, but not for this
├── NotFound
│   ├── VoiceNotFound
│   ├── VersionNotFound
│   ├── AliasNotFound
│   ├── ProfileUnknown
│   ├── JobNotFound
│   ├── ArtifactNotFound
│   ├── AudioNotFound              the version was made from a ready embedding
│   └── ApiKeyNotFound
├── Conflict
│   ├── VoiceExists                the registration policy is `immutable`
│   ├── RegistrationInProgress     so it is, and another request is registering the voice; passing
│   ├── VoiceDeleted               deleted while we were writing
│   ├── ArtifactFailed
│   ├── ArtifactNotReady
│   ├── ArtifactStale
│   ├── FingerprintMismatch        an artifact from outside was made with another one than ours are
│   ├── JobFinished                too late to cancel it
│   ├── ApiKeyEnded                revoked or expired: it stays so
│   ├── ApiKeysOff                 this registry asks for no keys, so none can be made
│   └── PreconditionFailed
├── QuotaExceeded
├── RateLimited                    passing: so many at a time, again after `retry_after_seconds`
├── Unavailable                    passing: try again after `retry_after_seconds`
│   ├── VoiceUnreadable            the bucket does not hand out a record of it now; other voices are served
│   └── VoiceDamaged               not passing: somebody must restore a record, or delete the voice
└── WorkerError                    raised while extracting; ends up in a job's `error`
    ├── WeightsMissing
    ├── WeightsInvalid
    ├── ClipDamaged                the bucket has lost the clip; the message says which part of it
    ├── EncoderUnproven            the encoder computes something else on this device than it should
    ├── ExtractorFailed
    ├── ExtractorOutOfMemory
    ├── WorkerOutdated             its fingerprint is not the profile's current one any more
    └── LeaseExpired
"""

from collections.abc import Iterator


class SpeakerRegistryError(Exception):
    """Base of all our errors.

    Args:
        message: what was wrong, with the value, and what is accepted. Shown to callers: never a path, a
        secret or a transcript.
        param: the request field it is about, if one.
        retry_after_seconds: when trying again makes sense; None where it does not.
    """

    code = "internal_error"
    """Stable on the wire. Never changes."""

    retryable = False
    """Whether the same request may succeed later without being changed."""

    def __init__(
        self, message: str = "", *, param: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.request_id: str | None = None
        """Set by the SDK from the server's answer."""


class InvalidRequest(SpeakerRegistryError):
    code = "invalid_request"


class InvalidVoiceName(InvalidRequest):
    code = "invalid_voice_name"


class InvalidReference(InvalidRequest):
    code = "invalid_reference"


class InvalidAudio(InvalidRequest):
    code = "invalid_audio"


class UnsupportedAudio(InvalidAudio):
    code = "unsupported_audio"


class AudioTooShort(InvalidAudio):
    code = "audio_too_short"


class AudioTooLong(InvalidAudio):
    code = "audio_too_long"


class AudioTruncated(InvalidAudio):
    code = "audio_truncated"


class InvalidEmbedding(InvalidRequest):
    code = "invalid_embedding"


class EmbeddingWidthMismatch(InvalidEmbedding):
    code = "embedding_dim_mismatch"


class InvalidArtifact(InvalidRequest):
    code = "artifact_schema"


class DigestMismatch(InvalidArtifact):
    code = "digest_mismatch"


class PayloadTooLarge(InvalidRequest):
    code = "payload_too_large"


class CacheUnsupported(InvalidRequest):
    code = "cache_unsupported"


class IdempotencyKeyReused(InvalidRequest):
    code = "idempotency_key_reused"


class InvalidApiKey(SpeakerRegistryError):
    code = "invalid_api_key"


class PermissionDenied(SpeakerRegistryError):
    code = "permission_denied"


class NotFound(SpeakerRegistryError):
    code = "not_found"


class VoiceNotFound(NotFound):
    code = "voice_not_found"


class VersionNotFound(NotFound):
    code = "version_not_found"


class AliasNotFound(NotFound):
    code = "alias_not_found"


class ProfileUnknown(NotFound):
    code = "profile_unknown"


class JobNotFound(NotFound):
    code = "job_not_found"


class ArtifactNotFound(NotFound):
    code = "artifact_not_found"


class AudioNotFound(NotFound):
    code = "audio_not_found"


class ApiKeyNotFound(NotFound):
    code = "api_key_not_found"


class Conflict(SpeakerRegistryError):
    code = "conflict"


class VoiceExists(Conflict):
    code = "voice_exists"


class RegistrationInProgress(Conflict):
    code = "registration_in_progress"
    retryable = True


class VoiceDeleted(Conflict):
    code = "voice_deleted"


class ArtifactFailed(Conflict):
    code = "artifact_failed"


class ArtifactNotReady(Conflict):
    code = "artifact_not_ready"
    retryable = True


class ArtifactStale(Conflict):
    code = "artifact_stale"


class FingerprintMismatch(Conflict):
    code = "fingerprint_mismatch"


class JobFinished(Conflict):
    code = "job_finished"


class ApiKeyEnded(Conflict):
    code = "api_key_ended"


class ApiKeysOff(Conflict):
    code = "api_keys_off"


class PreconditionFailed(Conflict):
    code = "precondition_failed"


class QuotaExceeded(SpeakerRegistryError):
    code = "quota_exceeded"


class RateLimited(SpeakerRegistryError):
    code = "rate_limited"
    retryable = True


class Unavailable(SpeakerRegistryError):
    code = "unavailable"
    retryable = True


class VoiceUnreadable(Unavailable):
    code = "voice_unreadable"


class VoiceDamaged(Unavailable):
    code = "voice_damaged"
    retryable = False


class WorkerError(SpeakerRegistryError):
    code = "worker_error"


class WeightsMissing(WorkerError):
    code = "weights_missing"


class WeightsInvalid(WorkerError):
    code = "weights_invalid"


class ClipDamaged(WorkerError):
    code = "clip_damaged"
    retryable = True


class EncoderUnproven(WorkerError):
    """A worker's device computes something else than it should; the message says which tensor and by how
    much.
    """

    code = "encoder_unproven"


class ExtractorFailed(WorkerError):
    code = "extractor_error"
    retryable = True


class ExtractorOutOfMemory(WorkerError):
    code = "extractor_oom"
    retryable = True


class WorkerOutdated(WorkerError):
    code = "worker_outdated"


class LeaseExpired(WorkerError):
    code = "lease_expired"
    retryable = True


def _tree(root: type[SpeakerRegistryError]) -> Iterator[type[SpeakerRegistryError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


BY_CODE: dict[str, type[SpeakerRegistryError]] = {cls.code: cls for cls in _tree(SpeakerRegistryError)}
"""Code on the wire -> class."""
