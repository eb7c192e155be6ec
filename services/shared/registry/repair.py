"""Replaces what the bucket has lost. An artifact whose bytes are missing or damaged becomes void and is
extracted again; a decoded clip is decoded again from the clip that was uploaded.

Knows no HTTP and no encoder.
"""

import hashlib
from collections.abc import Callable

import structlog

from services.shared.audio import DecodedClip, ReferenceAudio
from services.shared.bucket.blobs import (
    Unsound,
    clip_of,
    read_artifact,
    read_clip,
    read_rendition,
    store_clip,
)
from services.shared.bucket.facts import commit
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Store
from services.shared.model.domain import ArtifactRecord, SpeakerVersion, VoidFact
from services.shared.registry.parts import RegistryParts
from services.shared.registry.registrar import Registrar
from services.shared.registry.status import unsupported_reason
from services.shared.telemetry.metrics import REPAIRS
from speaker_registry.errors import ClipDamaged, InvalidAudio, PayloadTooLarge, Unavailable, VoiceNotFound

log = structlog.get_logger()

Decode = Callable[[bytes], DecodedClip]


def artifact_or_replacement(
    parts: RegistryParts,
    registrar: Registrar,
    speaker_id: SpeakerId,
    version: SpeakerVersion,
    record: ArtifactRecord,
) -> bytes | None:
    """Return the artifact's file, or None after its extraction was started again because the file is lost.

    Raises:
        Unsound: the file is lost, and only its owner can bring it again. VoiceNotFound. Unavailable.
    """
    try:
        return read_artifact(parts.store, speaker_id, version, record)
    except Unsound:
        profile = parts.catalogue.get(record.profile)
        if record in version.record.given or unsupported_reason(version, profile) is not None:
            raise
    akey = version.artifact_key(record.profile, record.fingerprint, record.build)
    fact = VoidFact(version.vuid, akey)
    commit(parts.store, speaker_id.void_key(fact, parts.clock.new_id()))
    log.error("artifact.void", vuid=version.vuid, profile=record.profile, digest=record.digest)
    REPAIRS.labels("artifact_void").inc()
    parts.index.apply_void(speaker_id, fact)
    registrar.claim(speaker_id, version, profile)
    return None


def restore_clip(store: Store, speaker_id: SpeakerId, version: SpeakerVersion, uploaded: bytes) -> None:
    """Store a version's clip again where it is lost.

    Args:
        uploaded: the very clip that the version was made from, which its owner has sent once more.

    Raises:
        Unavailable: the clip is lost, and cannot be stored now.
    """
    try:
        read_clip(store, speaker_id, version)
    except Unsound:
        store_clip(store, speaker_id, version.vuid, clip_of(version).sha256, uploaded)
        log.warning("clip.restored", vuid=version.vuid)
        REPAIRS.labels("clip_restored").inc()
    except (VoiceNotFound, Unavailable):
        return  # deleted since, or nobody can tell now: the clip was stored when the version was acknowledged


def sound_rendition(
    store: Store, speaker_id: SpeakerId, version: SpeakerVersion, decode: Decode
) -> ReferenceAudio:
    """Return the decoded clip that the version names. Where it is lost, it is decoded and stored again.

    Raises:
        ClipDamaged: the uploaded clip is lost as well, or decodes to other samples than it did.
        VoiceNotFound; Unavailable.
    """
    try:
        return ReferenceAudio.from_bytes(read_rendition(store, speaker_id, version))
    except Unsound as lost:
        rendition = _decoded_again(store, speaker_id, version, decode, lost)
    clip = clip_of(version)
    store_clip(store, speaker_id, version.vuid, clip.rendition_sha256, rendition)
    log.warning("rendition.restored", vuid=version.vuid)
    REPAIRS.labels("rendition_restored").inc()
    return ReferenceAudio.from_bytes(rendition)


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
