"""Restores bytes that the bucket has lost.

An uploaded clip is stored again when its owner sends it again. A decoded clip is decoded again from the
uploaded one. An artifact is made again from the clip. This module knows neither HTTP nor encoders.
"""

import hashlib
from collections.abc import Callable

import structlog

from services.shared.audio import DecodedClip, ReferenceAudio
from services.shared.bucket.layout import document_key
from services.shared.bucket.stored_bytes import StoredBytes, Unsound, clip_of
from services.shared.model.records import ArtifactRecord, Version
from services.shared.model.speaker import SpeakerId
from services.shared.model.status import unsupported_reason
from services.shared.queue.jobs import Jobs
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from services.shared.telemetry.metrics import REPAIRS
from speaker_registry.errors import (
    ClipDamaged,
    ExtractorFailed,
    InvalidAudio,
    PayloadTooLarge,
    Unavailable,
    VoiceNotFound,
)

log = structlog.get_logger()

Decode = Callable[[bytes], DecodedClip]
_REMEDY = (
    "Upload the same file to the voice again, which stores it and makes missing artifacts, or restore it "
    "from a backup and extract with force."
)


def restore_clip(blobs: StoredBytes, speaker_id: SpeakerId, version: Version, uploaded: bytes) -> None:
    """Store a version's uploaded clip again if the bucket has lost it.

    Args:
        uploaded: the clip that the version was made from, which its owner has sent again.

    Raises:
        Unavailable: the clip is lost and cannot be stored now.
    """
    try:
        blobs.clip(speaker_id, version)
    except Unsound:
        blobs.store_upload(speaker_id, version.vuid, uploaded)
        log.warning("clip.restored", vuid=version.vuid)
        REPAIRS.labels("clip_restored").inc()
    except Unavailable:
        return  # it cannot be read now, but was stored before its version was committed


def sound_clip(blobs: StoredBytes, speaker_id: SpeakerId, version: Version) -> bytes:
    """Return the clip of a version as it was uploaded.

    Raises:
        ClipDamaged: the bucket has lost it.
        AudioNotFound, Unavailable.
    """
    try:
        return blobs.clip(speaker_id, version)
    except Unsound as lost:
        raise ClipDamaged(
            f"The uploaded clip of version {version.number} is {lost.how} in the bucket. {_REMEDY}"
        ) from None


def sound_rendition(
    blobs: StoredBytes, speaker_id: SpeakerId, version: Version, decode: Decode
) -> ReferenceAudio:
    """Return the decoded clip of a version. Raises the same errors as `sound_rendition_bytes`."""
    return ReferenceAudio.from_bytes(sound_rendition_bytes(blobs, speaker_id, version, decode))


def sound_rendition_bytes(
    blobs: StoredBytes, speaker_id: SpeakerId, version: Version, decode: Decode
) -> bytes:
    """Return the file of a version's decoded clip. If the bucket has lost it, decode the clip and store it
    again.

    Raises:
        ClipDamaged: the uploaded clip is lost as well, or decodes to other samples than before.
        ExtractorFailed: the uploaded clip is there but could not be decoded again.
        AudioNotFound, Unavailable.
    """
    try:
        return blobs.rendition(speaker_id, version)
    except Unsound as lost:
        rendition = _decoded_again(blobs, speaker_id, version, decode, lost)
    blobs.store_rendition(speaker_id, version.vuid, rendition)
    log.warning("rendition.restored", vuid=version.vuid)
    REPAIRS.labels("rendition_restored").inc()
    return rendition


def _decoded_again(
    blobs: StoredBytes, speaker_id: SpeakerId, version: Version, decode: Decode, lost: Unsound
) -> bytes:
    found = f"The decoded clip of version {version.number} is {lost.how}, and the uploaded one"
    try:
        rendition = decode(blobs.clip(speaker_id, version)).audio.to_bytes()
    except Unsound as also_lost:
        raise ClipDamaged(f"{found} is {also_lost.how}. {_REMEDY}") from None
    except (InvalidAudio, PayloadTooLarge) as error:  # for example a limit of this process
        raise ExtractorFailed(f"{found} could not be decoded again. {error.message}") from None
    if hashlib.sha256(rendition).hexdigest() != clip_of(version).rendition_sha256:
        raise ClipDamaged(
            f"{found} no longer decodes to the same samples. Register the clip again as a new version, with "
            "dedupe=false."
        )
    return rendition


def artifact_or_replacement(
    speakers: Speakers,
    blobs: StoredBytes,
    jobs: Jobs,
    profiles: Profiles,
    speaker: FoundSpeaker,
    *,
    version: Version,
    profile: str,
    record: ArtifactRecord,
) -> bytes | None:
    """Return an artifact's file. If the bucket has lost it, start a job that makes it again, and return None.

    The record stays until the next build replaces it. A node of the store may have been outdated, so the
    worker reads the bytes once more before it makes them again.

    Raises:
        Unsound: the file is lost, and no encoder can make it again, so its owner has to upload it again.
        VoiceNotFound: the version was deleted meanwhile.
        Unavailable: also if the bucket has lost the version's record.
    """
    try:
        return blobs.artifact(speaker.id, version, record)
    except Unsound:
        newest = speakers.refresh(speaker.id)
        if newest.version(version.vuid) is None:
            # Readers forget a voice that is not found, so an older state of the bucket must not say so.
            raise _gone(speaker, version, was_deleted=newest.revision >= speaker.document.revision) from None
        if record.brought or unsupported_reason(version, profiles.get(profile)) is not None:
            raise
    log.error("artifact.lost", vuid=version.vuid, profile=profile, digest=record.digest)
    REPAIRS.labels("artifact_void").inc()
    jobs.open(speaker.id, version, profile, profiles.fingerprint(profile), mends=True)
    return None


def _gone(speaker: FoundSpeaker, version: Version, *, was_deleted: bool) -> VoiceNotFound | Unavailable:
    """Return the error for a version that the document in the bucket does not have."""
    if was_deleted:
        return VoiceNotFound(f"Voice '{version.name}' not found", param="name")
    return Unavailable(
        f"The object store has lost version {version.number} of this voice, or has an older state of it than "
        f"before. If this lasts, the object '{document_key(speaker.id)}' must be restored from a backup.",
        retry_after_seconds=1,
    )
