"""Taking a ready artifact from outside: from another registry, or from an encoder that we do not have. It
goes the way of a worker's, without a job: bytes, the fact, then the index. Knows no HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import structlog

from services.shared.domain import GIVEN_FINGERPRINT, ArtifactRecord, SpeakerVersion
from services.shared.facts import SpeakerId
from services.shared.packaging import applying_tensors, package
from services.shared.profiles import Profile
from services.shared.publication import PUBLISH_SECONDS, landed_first, put_in_force
from services.shared.registrar import Registrar
from speaker_registry.artifact import content_digest
from speaker_registry.errors import (
    Conflict,
    FingerprintMismatch,
    InvalidArtifact,
    Unavailable,
    VoiceDeleted,
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyArtifact:
    """What somebody brings. `extractor`: the facts behind the fingerprint, if they say."""

    tensors: Mapping[str, np.ndarray]
    fingerprint: str | None = None
    extractor: Mapping[str, Any] = field(default_factory=dict)
    untrained: bool = False


def give_artifact(
    registrar: Registrar,
    speaker_id: SpeakerId,
    version: SpeakerVersion,
    profile_name: str,
    given: ReadyArtifact,
) -> bool:
    """Store it and put it in force, in place of one that a worker made. Returns False if it is in force
    already.

    Raises:
        ProfileUnknown; FingerprintMismatch: this profile's artifacts are made with another one now;
        InvalidArtifact: it is not what the profile says, or names no fingerprint; VoiceDeleted; Conflict:
        somebody else put one there at the same moment; Unavailable.
    """
    profile = registrar.catalogue.get(profile_name)
    fingerprint = _fingerprint(registrar, profile, given)
    served = version.artifact(profile.name, fingerprint)
    tensors = applying_tensors(version.record, profile, given.tensors)
    if served is not None and served.content_digest == content_digest(tensors):
        return False
    data, record = package(
        version.record,
        profile,
        tensors,
        fingerprint=fingerprint,
        attempt=f"{registrar.clock.new_id()}-upload",
        build=1 + max((one.build for one in _made(version, profile, fingerprint)), default=0),
        extractor=given.extractor,
        untrained=given.untrained,
    )
    _publish(registrar, speaker_id, version, data, record)
    log.info("artifact.given", speaker=str(speaker_id), vuid=version.vuid, profile=profile.name)
    try:
        registrar.promote(speaker_id)
    except Unavailable as error:  # housekeeping does it
        log.warning("promotion.put_off", speaker=str(speaker_id), error=str(error))
    return True


def _fingerprint(registrar: Registrar, profile: Profile, given: ReadyArtifact) -> str:
    if profile.not_extractable:
        return GIVEN_FINGERPRINT  # no encoder of ours will ever make it stale
    if given.fingerprint is None:
        raise InvalidArtifact(
            "The artifact does not say what made it. Accepted: a fingerprint in its manifest, or in the "
            "header X-Artifact-Fingerprint."
        )
    current = registrar.announcements.current(profile.name)
    if current is not None and given.fingerprint != current.fingerprint:
        raise FingerprintMismatch(
            f"The artifact was made with {given.fingerprint[:100]}; artifacts for profile '{profile.name}' "
            f"are made with {current.fingerprint} now.",
            param="profile",
        )
    return given.fingerprint


def _made(version: SpeakerVersion, profile: Profile, fingerprint: str) -> list[ArtifactRecord]:
    return [
        record
        for record in version.artifacts.values()
        if (record.profile, record.fingerprint) == (profile.name, fingerprint)
    ]


def _publish(
    registrar: Registrar, speaker_id: SpeakerId, version: SpeakerVersion, data: bytes, record: ArtifactRecord
) -> None:
    store, index, clock = registrar.store, registrar.index, registrar.clock
    began, vuid = clock.monotonic(), version.vuid
    akey = f"{registrar.artifact_base(version, record.profile, record.fingerprint)}-{record.build}"
    blob_key = speaker_id.artifact_blob_key(vuid, akey, record)
    fact_key = speaker_id.artifact_fact_key(vuid, akey, record)
    store.put(blob_key, data)
    answer = index.begin_upload(speaker_id, vuid, akey, token=record.attempt)
    if answer != 1:
        store.delete([blob_key])
        raise _lost(version, record, dead=answer < 0)
    if clock.monotonic() - began > PUBLISH_SECONDS:
        raise Unavailable("Storing the artifact took too long; send it again.", retry_after_seconds=1)
    store.put(fact_key, record.to_json().encode())
    winner = put_in_force(
        partial(index.apply_artifact, speaker_id, vuid, akey),
        record,
        lambda: landed_first(store, speaker_id, vuid, akey),
        clock,
    )
    if winner != record.winner:
        store.delete([fact_key, blob_key])
        raise _lost(version, record, dead=winner is None)


def _lost(version: SpeakerVersion, record: ArtifactRecord, *, dead: bool) -> Conflict:
    if dead:
        return VoiceDeleted(f"Voice '{version.record.name}' was deleted while the artifact was being stored.")
    return Conflict(
        f"Another artifact of version {version.number} for profile '{record.profile}' was stored at the same "
        "moment. Send this one again if it is to replace that one."
    )
