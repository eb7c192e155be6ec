"""Turns tensors into an artifact: checks them against the profile, and makes the file and its record.
Pure.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.shared.model.fingerprint import Fingerprint
from services.shared.model.records import ArtifactRecord, Version
from speaker_registry.artifact import (
    ComputedOn,
    Manifest,
    TensorSpec,
    check_tensors,
    content_digest,
    describe,
    encode,
    sha256_digest,
)
from speaker_registry.engine import Profile
from speaker_registry.errors import InvalidArtifact


def applying_specs(version: Version, profile: Profile) -> dict[str, TensorSpec]:
    """Return the profile's tensors that this version can have. Some tensors need a transcript."""
    return {
        name: spec for name, spec in profile.tensors.items() if version.ref_text or not spec.needs_ref_text
    }


def applying_tensors(
    version: Version, profile: Profile, tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Leave out the profile's tensors that this version cannot have.

    Tensors that the profile does not know are kept, so that the following check refuses them.
    """
    left_out = profile.tensors.keys() - applying_specs(version, profile).keys()
    return {name: tensor for name, tensor in tensors.items() if name not in left_out}


def package(
    version: Version,
    profile: Profile,
    tensors: Mapping[str, np.ndarray],
    *,
    fingerprint: str,
    object_id: str,
    build: int = 1,
    extractor: Mapping[str, Any] | None = None,
    untrained: bool = False,
    computed_on: ComputedOn | None = None,
    used_seconds: float | None = None,
    seconds_spent: float = 0.0,
) -> tuple[bytes, ArtifactRecord]:
    """Return the artifact's file and its record.

    If the version has no transcript, tensors that need one are left out.

    Args:
        object_id, build: see `ArtifactRecord`.
        extractor: the fingerprint's inputs.
        computed_on: the machine that computed the tensors. It is not part of the fingerprint.
        used_seconds: the length of the audio that the tensors cover, if the extractor cut parts out of the
            clip.

    Raises:
        InvalidArtifact: the tensors do not match the profile, or their length does not match the used audio
            of the version's clip, or the used length rounds to zero microseconds or exceeds the clip.
    """
    clip = version.clip
    seconds = clip.seconds if clip else None
    used = seconds if used_seconds is None else _checked_length(used_seconds, seconds)
    specs, tensors = applying_specs(version, profile), applying_tensors(version, profile, tensors)
    check_tensors(tensors, specs, seconds=used, frame_rate=profile.frame_rate)
    manifest = Manifest(
        profile=profile.name,
        model_type=profile.model_type,
        fingerprint=fingerprint,
        extractor=dict(extractor or {}),
        untrained=untrained,
        custom_weights=Fingerprint(extractor or {}).custom_weights,
        voice=version.name,
        version=version.number,
        version_id=version.id,
        created_at=version.created_at,
        source=version.source,
        audio_sha256=clip.sha256 if clip else None,
        seconds=seconds,
        used_seconds=None if used_seconds is None else used,
        ref_text=version.ref_text,
        consent=version.consent,
        frame_rate=profile.frame_rate if clip else None,
        computed_on=computed_on,
    )
    data = encode(tensors, manifest)
    record = ArtifactRecord(
        fingerprint=fingerprint,
        build=build,
        object=object_id,
        digest=sha256_digest(data),
        content_digest=content_digest(tensors),
        size=len(data),
        tensors=describe(tensors),
        untrained=untrained,
        seconds_spent=seconds_spent,
    )
    return data, record


def _checked_length(used_seconds: float, clip_seconds: float | None) -> float:
    """Return the used length of a clip in whole microseconds, the unit in which clips are measured."""
    used = round(used_seconds, 6)
    if not used:
        raise InvalidArtifact(
            f"{used_seconds:g} s of audio are said to be used; accepted: one microsecond or more"
        )
    if clip_seconds is not None and used > clip_seconds:
        raise InvalidArtifact(f"{used:g} s of audio are said to be used; the clip has {clip_seconds:g} s")
    return used
