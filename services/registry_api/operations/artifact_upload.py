"""Stores an artifact that was made elsewhere: by another registry, or by an encoder that this one does not
have.

It is published like a worker's artifact, but without a job: first the bytes, then the fact, then the index.
Knows no HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import structlog

from services.registry_api.operations.extractions import too_many_builds
from services.shared.bucket.blobs import store_artifact
from services.shared.bucket.facts import commit
from services.shared.bucket.keys import SpeakerId
from services.shared.index.refusals import NamespaceFull
from services.shared.model.domain import GIVEN_FINGERPRINT, ArtifactRecord, SpeakerVersion
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.packaging import applying_tensors, package
from services.shared.registry.parts import RegistryParts
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.promotion import Promoter
from services.shared.registry.publication import PUBLISH_SECONDS, landed_first, put_in_force
from services.shared.registry.status import cache_unsupported, missing_transcript
from speaker_registry.artifact import Manifest, content_digest
from speaker_registry.engine import Profile
from speaker_registry.errors import (
    Conflict,
    FingerprintMismatch,
    InvalidArtifact,
    QuotaExceeded,
    Unavailable,
    VoiceDeleted,
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyArtifact:
    """An artifact as a caller uploads it."""

    tensors: Mapping[str, np.ndarray]
    manifest: Manifest | None = None
    fingerprint: str | None = None
    """The fingerprint of what made the artifact, if it has no manifest that states it."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """The fingerprint of an artifact, and its inputs."""

    fingerprint: str
    extractor: Mapping[str, Any]
    """The inputs of the fingerprint."""
    untrained: bool


class ArtifactUploads:
    """Stores uploaded artifacts, and serves them instead of those that a worker made."""

    def __init__(self, parts: RegistryParts, promoter: Promoter) -> None:
        self._store = parts.store
        self._index = parts.index
        self._leases = parts.leases
        self._profiles = parts.profile_records
        self._catalogue = parts.catalogue
        self._settings = parts.settings
        self._clock = parts.clock
        self._promoter = promoter

    def store(
        self, speaker_id: SpeakerId, version: SpeakerVersion, profile_name: str, given: ReadyArtifact
    ) -> bool:
        """Store an artifact, and serve it from now on.

        Returns False if the same artifact is served already.

        Raises:
            ProfileUnknown, VoiceDeleted, Unavailable.
            CacheUnsupported: the profile needs a transcript, and the version has none.
            FingerprintMismatch: the fingerprint is not the profile's current one.
            InvalidArtifact: it does not match the profile's tensors, is of another clip, or does not say what
                made it.
            QuotaExceeded: it would exceed the builds of the version or the stored bytes of the registry.
            Conflict: another artifact was stored at the same moment.
        """
        profile, manifest = self._catalogue.get(profile_name), given.manifest
        if reason := missing_transcript(version, profile):
            raise cache_unsupported(reason)
        if manifest is not None:
            _check_subject(manifest, version, profile)
        origin = _origin(self._profiles, profile, given)
        served = version.artifact(profile.name, origin.fingerprint)
        tensors = applying_tensors(version.record, profile, given.tensors)
        if served is not None and served.content_digest == content_digest(tensors):
            return False
        build = 1 + version.last_build(profile.name, origin.fingerprint)
        if build > self._settings.max_builds:
            raise too_many_builds(version, profile.name, self._settings.max_builds)
        data, record = package(
            version.record,
            profile,
            tensors,
            fingerprint=origin.fingerprint,
            attempt=f"{self._clock.new_id()}-upload",
            build=build,
            extractor=origin.extractor,
            untrained=origin.untrained,
            computed_on=manifest.computed_on if manifest else None,
            used_seconds=manifest.used_seconds if manifest else None,
        )
        self._publish(speaker_id, version, data, record)
        log.info("artifact.given", speaker=str(speaker_id), vuid=version.vuid, profile=profile.name)
        self._promoter.promote_or_put_off(speaker_id)
        self._leases.settle()
        return True

    def _publish(
        self, speaker_id: SpeakerId, version: SpeakerVersion, data: bytes, record: ArtifactRecord
    ) -> None:
        store, index, clock = self._store, self._index, self._clock
        began, vuid = clock.monotonic(), version.vuid
        akey = version.artifact_key(record.profile, record.fingerprint, record.build)
        fact_key = speaker_id.artifact_fact_key(vuid, akey, record)
        blob_key = store_artifact(store, speaker_id, vuid, akey, record, data=data)
        most = self._settings.max_stored_bytes
        try:
            answer = index.begin_upload(
                speaker_id, vuid, akey, token=record.attempt, size=record.size, max_stored_bytes=most
            )
        except NamespaceFull:
            store.delete([blob_key])
            raise QuotaExceeded(
                f"Artifact of {record.size} bytes refused: all uploads together may take {most}, see GET "
                "/v1/quota. Delete a voice before bringing more, or raise the cap via SPEAKER_MAX_BYTES."
            ) from None
        if answer != 1:
            store.delete([blob_key])
            raise _lost(version, record, dead=answer < 0)
        if clock.monotonic() - began > PUBLISH_SECONDS:
            raise Unavailable("Storing the artifact took too long; send it again.", retry_after_seconds=1)
        commit(store, fact_key, record.to_json().encode())
        winner = put_in_force(
            partial(index.apply_artifact, speaker_id, vuid, akey),
            record,
            partial(landed_first, store, speaker_id, vuid, akey),
            clock,
        )
        if winner != record.winner:
            store.delete([fact_key, blob_key])
            raise _lost(version, record, dead=winner is None)


def _check_subject(manifest: Manifest, version: SpeakerVersion, profile: Profile) -> None:
    """Raise `InvalidArtifact` unless the artifact is of this profile and this clip."""
    if manifest.profile != profile.name:
        raise InvalidArtifact(
            f"The artifact is for profile '{manifest.profile[:80]}', not for '{profile.name}'.",
            param="profile",
        )
    clip = version.record.clip
    if manifest.audio_sha256 is not None and (clip is None or manifest.audio_sha256 != clip.sha256):
        own = f"the clip {clip.sha256}" if clip else "no clip"
        raise InvalidArtifact(
            f"The artifact was made from the clip {manifest.audio_sha256[:64]}; version {version.number} of "
            f"voice '{version.record.name}' has {own}. Accepted: one that was made from the same bytes."
        )


def _origin(profiles: ProfileRecords, profile: Profile, given: ReadyArtifact) -> _Origin:
    """Return what made an artifact: as a worker announced it, if one did, else as the file states it."""
    manifest = given.manifest
    inputs = manifest.model_dump(mode="json")["extractor"] if manifest else {}
    if profile.not_extractable:  # no encoder of this registry can make it stale or tell more about it
        return _Origin(GIVEN_FINGERPRINT, inputs, manifest.untrained if manifest else False)
    fingerprint = manifest.fingerprint if manifest else given.fingerprint
    if fingerprint is None:
        raise InvalidArtifact(
            "The artifact does not say what made it. Put the fingerprint into its manifest, or into the "
            "header X-Artifact-Fingerprint."
        )
    current = profiles.current(profile.name)
    if current is None:
        return _verified(fingerprint, inputs)
    if fingerprint != current.fingerprint:
        raise FingerprintMismatch(
            f"The artifact was made with {fingerprint[:100]}; artifacts for profile '{profile.name}' "
            f"are made with {current.fingerprint} now.",
            param="profile",
        )
    return _Origin(fingerprint, current.extractor, current.untrained)


def _verified(fingerprint: str, inputs: Mapping[str, Any]) -> _Origin:
    """Return the origin that the file states, as no worker has announced what its fingerprint covers.

    Raises `InvalidArtifact` if the inputs in the manifest do not lead to the fingerprint.
    """
    stated = Fingerprint(inputs)
    if stated.digest != fingerprint:
        raise InvalidArtifact(
            f"No worker has announced the inputs of {fingerprint[:100]}, and those in the file's manifest "
            f"lead to {stated.digest}. Accepted: a manifest with the inputs of its fingerprint."
        )
    try:
        return _Origin(fingerprint, stated.inputs, stated.untrained)
    except (KeyError, TypeError):
        raise InvalidArtifact(
            "The file's manifest does not say whether the weights were trained. Accepted: "
            "extractor.weights.untrained, true or false."
        ) from None


def _lost(version: SpeakerVersion, record: ArtifactRecord, *, dead: bool) -> Conflict:
    if dead:
        return VoiceDeleted(f"Voice '{version.record.name}' was deleted while the artifact was being stored.")
    return Conflict(
        f"Another artifact of version {version.number} for profile '{record.profile}' was stored at the same "
        "moment. Send this one again if it shall replace the other."
    )
