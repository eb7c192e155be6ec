"""Stores an artifact that was made elsewhere: by another registry, or by an encoder that this one does not
have.

It is added to the document like a worker's artifact, but without a job. No encoder can make it again, so its
record is marked as brought. This module knows no HTTP.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import structlog

from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.artifacts import AlreadyMade, with_artifact
from services.shared.model.document import Counts, SpeakerDocument
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.packaging import applying_tensors, package
from services.shared.model.records import GIVEN_FINGERPRINT, ArtifactRecord, Version
from services.shared.model.status import cache_unsupported, given_profiles, missing_transcript
from services.shared.registry.change import Change
from services.shared.registry.extract import check_builds
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.artifact import Manifest
from speaker_registry.engine import Profile
from speaker_registry.errors import (
    Conflict,
    FingerprintMismatch,
    InvalidArtifact,
    QuotaExceeded,
    VersionNotFound,
    VoiceDeleted,
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyArtifact:
    """An uploaded artifact."""

    tensors: Mapping[str, np.ndarray]
    manifest: Manifest | None = None
    fingerprint: str | None = None
    """The fingerprint of the artifact, if it has no manifest that states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The limits for uploaded artifacts, with values from the settings."""

    builds: int
    """Largest number of builds of one artifact."""
    bytes: int
    """Largest total size of all uploads of a namespace, in bytes."""

    def check(self, size: int, used: Counts) -> None:
        """Raise `QuotaExceeded` if the namespace has no room for this many bytes."""
        if used.bytes + size > self.bytes:
            raise QuotaExceeded(
                f"Artifact of {size} bytes refused: all uploads together may take {self.bytes}, see GET "
                "/v1/quota. Delete a voice before uploading more, or raise the cap via SPEAKER_MAX_BYTES."
            )


@dataclass(frozen=True, slots=True)
class _Origin:
    """The fingerprint of an artifact, and its inputs."""

    fingerprint: str
    extractor: Mapping[str, Any]
    """The inputs of the fingerprint."""
    untrained: bool


@dataclass(frozen=True, slots=True)
class Brought:
    """A stored artifact."""

    speaker: FoundSpeaker
    """The speaker with the artifact, also if it was deleted since."""
    version: Version
    fingerprint: str
    new: bool
    """False if the same artifact was served already."""


def bring(
    speakers: Speakers,
    blobs: StoredBytes,
    profiles: Profiles,
    *,
    room: Room,
    speaker: FoundSpeaker,
    version: Version,
    profile: str,
    given: ReadyArtifact,
    by: str,
) -> Brought:
    """Store an artifact of a version, and start serving it.

    If the same artifact is served already, nothing changes, unless its bytes are lost. A file that was made
    for this very version, in the registry from which it was moved, is the same only if all its bytes are.

    Raises:
        ProfileUnknown, Unavailable.
        VoiceDeleted, VersionNotFound: the voice or the version was deleted meanwhile.
        CacheUnsupported: the profile needs a transcript, and the version has none.
        FingerprintMismatch: the fingerprint is not the profile's current one.
        InvalidArtifact: it does not match the profile's tensors, was made from another clip, or does not
            state its fingerprint and inputs.
        QuotaExceeded: it would exceed the builds of the version or the stored bytes of the registry.
        Conflict: a different artifact was stored at the same moment, or the version was made from an
            embedding, which is its artifact for the profile.
    """
    known = profiles.get(profile)
    if reason := missing_transcript(version, known):
        raise cache_unsupported(reason)
    if given.manifest is not None:
        _check_subject(given.manifest, version, known)
    is_source = _is_source(version, known)
    origin = _Origin(GIVEN_FINGERPRINT, {}, False) if is_source else _origin(profiles, known, given)
    with speakers.changing(speaker.id, by=by) as change:
        version = change.ask(partial(_present, version=version))
        data, record = _pack(version, known, origin, given, object_id=change.token)
        same = _served_same(version, known, origin, given, record)
        if same is not None and blobs.has_artifact(speaker.id, version, same):
            document = change.commit(lambda document: document, did="repeat")
            return _brought(speaker, document, version, origin, new=False)
        if is_source and same is None:
            raise Conflict(
                f"Version {version.number} of voice '{version.name}' was made from an embedding. It is the "
                f"artifact for profile '{profile}' and never changes. Register another embedding instead."
            )
        check_builds(version, profile, origin.fingerprint, room.builds)
        room.check(record.size, speakers.usage_so_far(speaker.id.namespace))
        blobs.store_artifact(speaker.id, version.vuid, record.object, data)
        add = _adding(profiles, version, profile, record, origin, lost=same)
        max_bytes = speakers.max_document_bytes
        document, new = _commit(change, version, known, record, add, max_bytes=max_bytes)
    if new:
        log.info("artifact.uploaded", speaker=str(speaker.id), vuid=version.vuid, profile=profile)
    return _brought(speaker, document, version, origin, new=new)


def _present(document: SpeakerDocument, *, version: Version) -> Version:
    present = document.version(version.vuid)
    if present is not None:
        return present
    if not document.live:
        raise VoiceDeleted(f"Voice '{version.name}' was deleted while the artifact was being stored.")
    raise VersionNotFound(
        f"Version {version.number} of voice '{version.name}' was deleted while the artifact was being stored."
    )


def _brought(
    speaker: FoundSpeaker, document: SpeakerDocument, version: Version, origin: _Origin, *, new: bool
) -> Brought:
    version = _present(document, version=version)
    return Brought(replace(speaker, document=document), version, origin.fingerprint, new)


def _served_same(
    version: Version, profile: Profile, origin: _Origin, given: ReadyArtifact, packed: ArtifactRecord
) -> ArtifactRecord | None:
    """Return the served artifact if it equals the uploaded one: its tensors, or the file of a moved version.

    If a worker extracted a moved version before its artifact was uploaded, the tensors may be equal although
    the header names another machine.
    """
    served = version.artifact(profile.name, origin.fingerprint)
    if served is None or served.content_digest != packed.content_digest:
        return None
    made_for = given.manifest.version_id if given.manifest else None
    is_moved = version.given_id is not None and version.given_id == made_for
    return served if not is_moved or served.digest == packed.digest else None


def _pack(
    version: Version, profile: Profile, origin: _Origin, given: ReadyArtifact, *, object_id: str
) -> tuple[bytes, ArtifactRecord]:
    manifest = given.manifest
    data, record = package(
        version,
        profile,
        applying_tensors(version, profile, given.tensors),
        fingerprint=origin.fingerprint,
        object_id=object_id,
        build=1 + version.highest_build(profile.name, origin.fingerprint),
        extractor=origin.extractor,
        untrained=origin.untrained,
        computed_on=manifest.computed_on if manifest else None,
        used_seconds=manifest.used_seconds if manifest else None,
    )
    return data, record.having(brought=True)


def _adding(
    profiles: Profiles,
    version: Version,
    profile: str,
    record: ArtifactRecord,
    origin: _Origin,
    *,
    lost: ArtifactRecord | None,
) -> Callable[[SpeakerDocument], SpeakerDocument]:
    def add(document: SpeakerDocument) -> SpeakerDocument:
        _present(document, version=version)
        return with_artifact(
            document,
            version.vuid,
            profile,
            record,
            profiles.required,
            extractor=origin.extractor,
            instead_of=lost.object if lost else None,
        )

    return add


def _commit(
    change: Change,
    version: Version,
    profile: Profile,
    record: ArtifactRecord,
    add: Callable[[SpeakerDocument], SpeakerDocument],
    *,
    max_bytes: int,
) -> tuple[SpeakerDocument, bool]:
    """Add an artifact. Returns the document, and False if an equal one was added at the same moment."""

    def repeated(document: SpeakerDocument) -> SpeakerDocument:
        present = _present(document, version=version)
        served = present.artifact(profile.name, record.fingerprint)
        if served is None or served.content_digest != record.content_digest:
            raise Conflict(
                f"Another artifact of version {version.number} for profile '{profile.name}' was stored at "
                "the same moment. Send this one again if it is to replace the other."
            )
        return document

    def is_done(document: SpeakerDocument) -> bool:
        return record.object in document.names_of_bytes

    try:
        return change.commit(add, did="bring", done=is_done, max_bytes=max_bytes), True
    except AlreadyMade:
        return change.commit(repeated, did="repeat"), False


def _check_subject(manifest: Manifest, version: Version, profile: Profile) -> None:
    """Raise `InvalidArtifact` unless the artifact was made for this profile and from this clip."""
    if manifest.profile != profile.name:
        raise InvalidArtifact(
            f"The artifact is for profile '{manifest.profile[:80]}', not for '{profile.name}'.",
            param="profile",
        )
    clip = version.clip
    if manifest.audio_sha256 is not None and (clip is None or manifest.audio_sha256 != clip.sha256):
        own = f"the clip {clip.sha256}" if clip else "no clip"
        raise InvalidArtifact(
            f"The artifact was made from the clip {manifest.audio_sha256[:64]}; version {version.number} of "
            f"voice '{version.name}' has {own}. Accepted: one that was made from the same bytes."
        )


def _is_source(version: Version, profile: Profile) -> bool:
    """Return whether the artifact of a version for a profile is the embedding that it was made from.

    That is never so for a profile whose artifacts are all uploaded.
    """
    if version.source != "embedding" or profile.not_extractable:
        return False
    return profile.name in given_profiles(version)


def _origin(profiles: Profiles, profile: Profile, given: ReadyArtifact) -> _Origin:
    """Return the fingerprint and inputs of an artifact: those that a worker announced, or else those that the
    file states.
    """
    manifest = given.manifest
    inputs = manifest.model_dump(mode="json")["extractor"] if manifest else {}
    if profile.not_extractable:  # no encoder of this registry can make it outdated or has its inputs
        return _Origin(GIVEN_FINGERPRINT, inputs, manifest.untrained if manifest else False)
    fingerprint = manifest.fingerprint if manifest else given.fingerprint
    if fingerprint is None:
        raise InvalidArtifact(
            "The artifact does not name its fingerprint. Put the fingerprint into its manifest, or into the "
            "header X-Artifact-Fingerprint."
        )
    if fingerprint == GIVEN_FINGERPRINT:
        raise FingerprintMismatch(
            f"The artifact was made from an uploaded embedding. Accepted for profile '{profile.name}': "
            "artifacts that an encoder made.",
            param="profile",
        )
    current = profiles.encoder(profile.name)
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
    """Return the origin that the file states, after a check of its fingerprint, which no worker has
    announced.

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
