"""Restores clips that the bucket has lost.

An uploaded clip is stored again when its owner sends it again. A decoded clip is decoded again from the
uploaded one. Knows no HTTP and no encoder.
"""

import hashlib
from collections.abc import Callable

import structlog

from services.shared.audio import DecodedClip, ReferenceAudio
from services.shared.bucket.blobs import (
    Unsound,
    clip_of,
    read_clip,
    read_rendition,
    store_clip,
)
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Store
from services.shared.model.domain import SpeakerVersion
from services.shared.telemetry.metrics import REPAIRS
from speaker_registry.errors import ClipDamaged, InvalidAudio, PayloadTooLarge, Unavailable, VoiceNotFound

log = structlog.get_logger()

Decode = Callable[[bytes], DecodedClip]


def restore_clip(store: Store, speaker_id: SpeakerId, version: SpeakerVersion, uploaded: bytes) -> None:
    """Store a version's uploaded clip again if the bucket has lost it.

    Args:
        uploaded: the clip that the version was made from, which its owner has sent again.

    Raises:
        Unavailable: the clip is lost and cannot be stored now.
    """
    try:
        read_clip(store, speaker_id, version)
    except Unsound:
        store_clip(store, speaker_id, version.vuid, clip_of(version).sha256, uploaded)
        log.warning("clip.restored", vuid=version.vuid)
        REPAIRS.labels("clip_restored").inc()
    except (VoiceNotFound, Unavailable):
        return  # deleted since, or unreadable now; the clip was stored before its version was committed


def sound_rendition(
    store: Store, speaker_id: SpeakerId, version: SpeakerVersion, decode: Decode
) -> ReferenceAudio:
    """Return the decoded clip of a version. Raises the same errors as `sound_rendition_bytes`."""
    return ReferenceAudio.from_bytes(sound_rendition_bytes(store, speaker_id, version, decode))


def sound_rendition_bytes(
    store: Store, speaker_id: SpeakerId, version: SpeakerVersion, decode: Decode
) -> bytes:
    """Return the file of a version's decoded clip. If the bucket has lost it, decode the clip and store it
    again.

    Raises:
        ClipDamaged: the uploaded clip is lost as well, or decodes to other samples than before.
        AudioNotFound, VoiceNotFound, Unavailable.
    """
    try:
        return read_rendition(store, speaker_id, version)
    except Unsound as lost:
        rendition = _decoded_again(store, speaker_id, version, decode, lost)
    clip = clip_of(version)
    store_clip(store, speaker_id, version.vuid, clip.rendition_sha256, rendition)
    log.warning("rendition.restored", vuid=version.vuid)
    REPAIRS.labels("rendition_restored").inc()
    return rendition


def _decoded_again(
    store: Store, speaker_id: SpeakerId, version: SpeakerVersion, decode: Decode, lost: Unsound
) -> bytes:
    number = version.number
    try:
        rendition = decode(read_clip(store, speaker_id, version)).audio.to_bytes()
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
    return rendition
