"""All errors of the registry, shared by the API and the SDK. The API maps these classes to HTTP status codes,
and the SDK raises the class that belongs to the `code` of an answer.
"""

from collections.abc import Iterator


class SpeakerRegistryError(Exception):
    """Base class of all errors of the registry.

    Args:
        message: Says what was wrong, with the value, and what is accepted. The message is shown to callers,
            so it never contains a path, a secret or a transcript.
        param: The request field that caused the error, if there is one.
        retry_after_seconds: Time after which a retry makes sense. None if it does not.
    """

    code = "internal_error"
    """Stable error code in answers of the API. It never changes."""

    retryable = False
    """True if the same request may succeed later without any change."""

    def __init__(
        self, message: str = "", *, param: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.request_id: str | None = None
        """Id of the failed request. The SDK sets it from the answer."""
        self.is_foreign = False
        """True if the answer is not the registry's, for example because a proxy sent it. The class is then
        `Unavailable`, or `PayloadTooLarge` for status 413 to a request with a body. In the same way,
        `InvalidRequest` says while voices are pushed that an answer is not the TTS server's.
        """


class InvalidRequest(SpeakerRegistryError):
    """The request is invalid. The message names the value and what is accepted."""

    code = "invalid_request"


class InvalidVoiceName(InvalidRequest):
    """The name of a voice is not accepted."""

    code = "invalid_voice_name"


class InvalidReference(InvalidRequest):
    """A `name@ref`, a version number or an alias is malformed."""

    code = "invalid_reference"


class InvalidAudio(InvalidRequest):
    """The clip cannot serve as reference audio."""

    code = "invalid_audio"


class UnsupportedAudio(InvalidAudio):
    """The file is in a container or codec that is not accepted."""

    code = "unsupported_audio"


class AudioTooShort(InvalidAudio):
    """The clip is shorter than the minimum length."""

    code = "audio_too_short"


class AudioTooLong(InvalidAudio):
    """The clip is longer than the maximum length."""

    code = "audio_too_long"


class AudioTruncated(InvalidAudio):
    """A part of the clip is missing."""

    code = "audio_truncated"


class InvalidEmbedding(InvalidRequest):
    """The speaker embedding is not accepted."""

    code = "invalid_embedding"


class EmbeddingWidthMismatch(InvalidEmbedding):
    """The width of the speaker embedding differs from what the profile needs."""

    code = "embedding_dim_mismatch"


class InvalidArtifact(InvalidRequest):
    """The file is not an artifact, or does not match its profile."""

    code = "artifact_schema"


class DigestMismatch(InvalidArtifact):
    """The bytes do not match their digest, so they were damaged on the way."""

    code = "digest_mismatch"


class InvalidArchive(InvalidRequest):
    """The file is not a complete, undamaged export of a speaker registry."""

    code = "invalid_archive"


class PayloadTooLarge(InvalidRequest):
    """The request, the clip or the answer is larger than accepted."""

    code = "payload_too_large"


class CacheUnsupported(InvalidRequest):
    """The voice lacks something that the profile's artifact needs, such as a transcript."""

    code = "cache_unsupported"


class IdempotencyKeyReused(InvalidRequest):
    """The idempotency key was already used for a different request."""

    code = "idempotency_key_reused"


class InvalidApiKey(SpeakerRegistryError):
    """No API key was sent, or the key is unknown, revoked or expired."""

    code = "invalid_api_key"


class PermissionDenied(SpeakerRegistryError):
    """The API key is valid but lacks a permission that the request needs."""

    code = "permission_denied"


class NotFound(SpeakerRegistryError):
    """There is no such object. Subclasses say which kind of object is missing."""

    code = "not_found"


class VoiceNotFound(NotFound):
    code = "voice_not_found"


class VersionNotFound(NotFound):
    code = "version_not_found"


class AliasNotFound(NotFound):
    code = "alias_not_found"


class ProfileUnknown(NotFound):
    code = "profile_unknown"


class EncoderUnknown(NotFound):
    """No worker has ever announced this fingerprint for the profile."""

    code = "encoder_unknown"


class CampaignNotFound(NotFound):
    """There is no such campaign of the profile."""

    code = "campaign_not_found"


class JobNotFound(NotFound):
    code = "job_not_found"


class ArtifactNotFound(NotFound):
    code = "artifact_not_found"


class AudioNotFound(NotFound):
    """The version was made from an embedding and has no clip."""

    code = "audio_not_found"


class ApiKeyNotFound(NotFound):
    code = "api_key_not_found"


class Conflict(SpeakerRegistryError):
    """The request does not fit the current state of the object."""

    code = "conflict"


class VoiceExists(Conflict):
    """The voice exists, and the request or the registration policy `immutable` only accepts a new name."""

    code = "voice_exists"


class VoiceDeleted(Conflict):
    """The voice was deleted while the request was processed."""

    code = "voice_deleted"


class ArtifactFailed(Conflict):
    """The extraction of the artifact failed or was canceled."""

    code = "artifact_failed"


class PicturesFailed(Conflict):
    """A worker could not draw the pictures of the clip."""

    code = "pictures_failed"


class ArtifactNotReady(Conflict):
    """The artifact is not ready yet. Try again later."""

    code = "artifact_not_ready"
    retryable = True


class ArtifactStale(Conflict):
    """The artifact was not made by the current encoder, and only one of the current encoder is wanted."""

    code = "artifact_stale"


class FingerprintMismatch(Conflict):
    """The fingerprint of the uploaded artifact differs from the profile's current one."""

    code = "fingerprint_mismatch"


class EncoderCurrent(Conflict):
    """The encoder to be promoted is the current one of its profile already."""

    code = "encoder_current"


class EncoderUnserved(Conflict):
    """No live worker has the encoder to be promoted. `force` promotes it nevertheless."""

    code = "encoder_unserved"


class CampaignOpen(Conflict):
    """Another campaign of the profile is not over."""

    code = "campaign_open"


class CampaignEnded(Conflict):
    """The campaign is over and can no longer be changed."""

    code = "campaign_ended"


class JobFinished(Conflict):
    """The job has finished and can no longer be canceled."""

    code = "job_finished"


class ApiKeyEnded(Conflict):
    """The API key is revoked or expired, which cannot be undone."""

    code = "api_key_ended"


class ApiKeysOff(Conflict):
    """The registry requires no API keys, so none can be made."""

    code = "api_keys_off"


class PreconditionFailed(Conflict):
    code = "precondition_failed"


class QuotaExceeded(SpeakerRegistryError):
    """A limit of the namespace, the voice or the registry is reached."""

    code = "quota_exceeded"


class RateLimited(SpeakerRegistryError):
    """Too many requests. Try again after `retry_after_seconds`."""

    code = "rate_limited"
    retryable = True


class Unavailable(SpeakerRegistryError):
    """The registry cannot be reached or cannot answer now. Try again after `retry_after_seconds`."""

    code = "unavailable"
    retryable = True


class VoiceUnreadable(Unavailable):
    """A record, clip or artifact of this voice cannot be read from the bucket at the moment. Try later."""

    code = "voice_unreadable"


class VoiceDamaged(Unavailable):
    """A record of this voice is damaged. An operator must restore it, or the voice must be deleted."""

    code = "voice_damaged"
    retryable = False


class WorkerError(SpeakerRegistryError):
    """An extraction failed. Errors of this kind appear in the `error` of a job."""

    code = "worker_error"


class WeightsMissing(WorkerError):
    code = "weights_missing"


class WeightsInvalid(WorkerError):
    code = "weights_invalid"


class ClipDamaged(WorkerError):
    """The clip in the bucket is damaged. The message says which part of it."""

    code = "clip_damaged"
    retryable = True


class EncoderUnproven(WorkerError):
    """The encoder computes wrong results on a worker's device. The message says which tensor differs and by
    how much.
    """

    code = "encoder_unproven"


class ExtractorFailed(WorkerError):
    code = "extractor_error"
    retryable = True


class ExtractorOutOfMemory(WorkerError):
    code = "extractor_oom"
    retryable = True


class LeaseExpired(WorkerError):
    code = "lease_expired"
    retryable = True


def _tree(root: type[SpeakerRegistryError]) -> Iterator[type[SpeakerRegistryError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


BY_CODE: dict[str, type[SpeakerRegistryError]] = {cls.code: cls for cls in _tree(SpeakerRegistryError)}
"""Maps error codes to classes."""
