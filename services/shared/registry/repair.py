"""Repairs what the bucket has lost: artifacts are made again, and clips are stored or decoded again.

An uploaded clip is stored again when its owner sends it again. A decoded clip is decoded again from the
uploaded one. Knows no HTTP and no encoder.
"""

import hashlib
from collections.abc import Callable

import structlog

from services.shared.audio import DecodedClip, ReferenceAudio
from services.shared.bucket.blobs import Unsound
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.stored_bytes import StoredBytes, clip_of
from services.shared.model.records import ArtifactRecord, Version
from services.shared.model.status import unsupported_reason
from services.shared.queue.jobs import Jobs
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker
from services.shared.telemetry.metrics import REPAIRS
from speaker_registry.errors import ClipDamaged, InvalidAudio, PayloadTooLarge, Unavailable

log = structlog.get_logger()

Decode = Callable[[bytes], DecodedClip]


def artifact_bytes(
    blobs: StoredBytes,
    jobs: Jobs,
    profiles: Profiles,
    speaker: FoundSpeaker,
    version: Version,
    profile: str,
    record: ArtifactRecord,
) -> bytes | None:
    """Return an artifact's file. If the file is lost, have it made again and return None.

    The document names the lost file until there is another one. The worker looks for the file once more,
    since a node of the store may only be behind.

    Raises:
        Unsound: the file is lost, and only its owner can upload it again. Unavailable.
    """
    try:
        return blobs.artifact(speaker.id, version, record)
    except Unsound:
        if record.brought or unsupported_reason(version, profiles.get(profile)) is not None:
            raise
    log.error("artifact.lost", vuid=version.vuid, profile=profile, digest=record.digest)
    REPAIRS.labels("artifact_void").inc()
    jobs.open(speaker.id, version, profile, profiles.fingerprint(profile), mends=True)
    return None


def restore_clip(
    blobs: StoredBytes, speaker_id: SpeakerId, version: Version, uploaded: bytes, rendition: bytes
) -> None:
    """Store a version's clip again if the bucket has lost it.

    Args:
        uploaded: the clip that the version was made from, which its owner has sent again.
        rendition: the same clip, as it was decoded.

    Raises:
        Unavailable: the clip is lost and cannot be stored now.
    """
    try:
        blobs.clip(speaker_id, version)
    except Unsound:
        blobs.store_clip(speaker_id, version.vuid, uploaded, rendition)
        log.warning("clip.restored", vuid=version.vuid)
        REPAIRS.labels("clip_restored").inc()
    except Unavailable:
        return  # unreadable now; the clip was stored before its version was committed


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
        AudioNotFound, Unavailable.
    """
    try:
        return blobs.rendition(speaker_id, version)
    except Unsound as lost:
        uploaded, rendition = _decoded_again(blobs, speaker_id, version, decode, lost)
    blobs.store_clip(speaker_id, version.vuid, uploaded, rendition)
    log.warning("rendition.restored", vuid=version.vuid)
    REPAIRS.labels("rendition_restored").inc()
    return rendition


def _decoded_again(
    blobs: StoredBytes, speaker_id: SpeakerId, version: Version, decode: Decode, lost: Unsound
) -> tuple[bytes, bytes]:
    """Return the clip as it was uploaded, and as it was decoded."""
    number = version.number
    try:
        uploaded = blobs.clip(speaker_id, version)
        rendition = decode(uploaded).audio.to_bytes()
    except (Unsound, InvalidAudio, PayloadTooLarge):
        raise ClipDamaged(
            f"The decoded clip of version {number} is {lost.how}, and so is the uploaded one. Register the "
            "clip again as a new version."
        ) from None
    if hashlib.sha256(rendition).hexdigest() != clip_of(version).rendition_sha256:
        raise ClipDamaged(
            f"The decoded clip of version {number} is {lost.how}, and the uploaded one no longer decodes to "
            "the same samples. Register the clip again as a new version."
        )
    return uploaded, rendition
