"""Registers a speaker's next version: reserves its number, stores its blobs, and commits its fact.

A repeated request returns the version that the first one made. Registration is atomic: until the fact is
committed, the previous version is served. Knows no HTTP and no encoder.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import structlog

from services.registry_api.operations.extractions import Extractions
from services.shared.audio import DecodedClip
from services.shared.bucket.blobs import store_artifact, store_clip
from services.shared.bucket.facts import commit
from services.shared.bucket.keys import SpeakerId
from services.shared.index.census import take_census
from services.shared.index.gate import GateClosed
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.refusals import (
    AlreadyMade,
    CensusDue,
    FactsDue,
    NamespaceFull,
    TextsFull,
    TooManyVersions,
    key_reused,
)
from services.shared.index.speaker_index import COMMIT_SECONDS, Reservation, VersionSelection
from services.shared.model.domain import (
    GIVEN_FINGERPRINT,
    ArtifactRecord,
    ClipRecord,
    Speaker,
    SpeakerVersion,
    VersionRecord,
    given_key,
    utf8_bytes,
)
from services.shared.model.packaging import package
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.parts import RegistryParts
from services.shared.registry.promotion import Promoter
from services.shared.registry.repair import restore_clip
from services.shared.registry.status import unsupported_reason
from speaker_registry.artifact import canonical_json
from speaker_registry.engine import Profile
from speaker_registry.errors import (
    EmbeddingWidthMismatch,
    QuotaExceeded,
    Unavailable,
    VoiceDeleted,
    VoiceExists,
    VoiceNotFound,
)
from speaker_registry.names import SpeakerName

log = structlog.get_logger()

_TRIES = 3
"""The number of attempts around a census, because Redis may be lost again meanwhile."""


Expects = Literal["any", "new", "existing"]
"""Whether a voice must not exist yet, or must exist. An upload that adds no version is not refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The fields of an upload besides its source."""

    name: SpeakerName
    consent: str
    ref_text: str | None = None
    description: str | None = None
    idempotency_key: str | None = None
    expects: Expects = "any"
    dedupe: bool = True
    """If true, an upload with the same source and texts as the newest version returns that version."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The outcome of a registration."""

    indexed: IndexedSpeaker
    version: SpeakerVersion
    """The registered version, which is one of `indexed`."""
    created: bool
    """False if the same request had been served before."""
    jobs: Mapping[str, str]
    """Profile -> id of the job that extracts it."""


class Registrations:
    """Registers clips and speaker embeddings as versions of speakers."""

    def __init__(self, parts: RegistryParts, extractions: Extractions, promoter: Promoter) -> None:
        self._parts = parts
        self._extractions = extractions
        self._promoter = promoter

    def register_clip(self, namespace: str, upload: Upload, data: bytes, clip: DecodedClip) -> Registered:
        """Store a checked clip as a new version and start extracting it.

        Args:
            data: the clip's bytes as uploaded.
            clip: the same clip, decoded and accepted.

        Raises:
            QuotaExceeded, VoiceExists, VoiceNotFound, VoiceDeleted, IdempotencyKeyReused, Unavailable: what
            is served has not changed.
        """
        rendition = clip.audio.to_bytes()
        facts = ClipRecord(
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            mime_type=clip.mime_type,
            seconds=round(clip.audio.seconds, 6),
            sample_rate=clip.audio.sample_rate,
            channels=clip.channels,
            rendition_sha256=hashlib.sha256(rendition).hexdigest(),
        )
        registration = self._begin(namespace, upload, facts.sha256)
        registration.reserve(facts.size)
        if registration.served is not None:
            speaker_id = SpeakerId.of(namespace, upload.name)
            restore_clip(self._parts.store, speaker_id, registration.served.version, data)
            return registration.served
        registration.put_blobs({facts.sha256: data, facts.rendition_sha256: rendition})
        return registration.commit(source="audio", clip=facts)

    def register_embedding(self, namespace: str, upload: Upload, embedding: np.ndarray) -> Registered:
        """Store a speaker embedding (float32 [D], finite) as a new version. Its artifacts are ready at once.

        Raises:
            EmbeddingWidthMismatch: no required profile takes that width, or profiles of several models do.
            QuotaExceeded, VoiceExists, VoiceNotFound, VoiceDeleted, IdempotencyKeyReused, Unavailable: as
                `register_clip`.
        """
        profiles = _profiles_taking(self._parts.catalogue, embedding)
        source = hashlib.sha256(embedding.tobytes()).hexdigest()
        registration = self._begin(namespace, upload, source)
        registration.reserve(embedding.nbytes * len(profiles))
        if registration.served is not None:
            return registration.served
        given = tuple(registration.put_given(profile, embedding) for profile in profiles)
        return registration.commit(source="embedding", embedding_width=len(embedding), given=given)

    def _begin(self, namespace: str, upload: Upload, source_sha256: str) -> "_Registration":
        return _Registration(self._parts, self._extractions, self._promoter, namespace, upload, source_sha256)


def _profiles_taking(catalogue: ProfileCatalogue, embedding: np.ndarray) -> list[Profile]:
    """Return the required profiles that take an embedding of this width.

    All must be of one model, because embeddings of different encoders mean different things even at the same
    width.
    """
    profiles = catalogue.taking_embeddings_of(len(embedding))
    if not profiles:
        widths = sorted({one.embedding_width for one in catalogue.required_profiles if one.embedding_width})
        raise EmbeddingWidthMismatch(
            f"The embedding has {len(embedding)} elements; the required profiles take {widths}."
        )
    if len({profile.model_type for profile in profiles}) > 1:
        names = ", ".join(profile.name for profile in profiles)
        raise EmbeddingWidthMismatch(
            f"The embedding has {len(embedding)} elements, and several required profiles take that "
            f"many, of different encoders: {names}. Register a clip, and upload the embedding for its "
            "profile by PUT /v1/voices/{name}/versions/{version}/artifacts/{profile}."
        )
    return profiles


def _voice_exists(name: SpeakerName, *, immutable: bool) -> VoiceExists:
    if immutable:
        return VoiceExists(
            f"Voice '{name.name}' already exists and VLLM_OMNI_SPEAKER_REGISTRATION_POLICY is 'immutable'; "
            f"delete it first via DELETE /v1/audio/voices/{name.key}."
        )
    return VoiceExists(
        f"Voice '{name.name}' already exists. Add a version with POST "
        f"/v1/voices/{quote(name.key, safe='')}/versions, or take another name.",
        param="name",
    )


def voice_to_register(name: str) -> VoiceNotFound:
    """Return the error for a further version of a voice that does not exist."""
    return VoiceNotFound(f"Voice '{name}' not found. Register it with POST /v1/voices.", param="name")


class _Registration:
    """One registration in progress: `reserve`, then store the blobs, then `commit`, unless it is a repeat."""

    def __init__(
        self,
        parts: RegistryParts,
        extractions: Extractions,
        promoter: Promoter,
        namespace: str,
        upload: Upload,
        source_sha256: str,
    ) -> None:
        self._store = parts.store
        self._index = parts.index
        self._leases = parts.leases
        self._settings = parts.settings
        self._catalogue = parts.catalogue
        self._run_all = parts.run_all
        self._clock = parts.clock
        self._extractions = extractions
        self._promoter = promoter
        self._upload = upload
        self._id = SpeakerId.of(namespace, upload.name)
        self._started = self._clock.monotonic()
        self._vuid = self._clock.new_id()
        self._request = _hash(
            upload.name.name, source_sha256, upload.ref_text, upload.consent, upload.description
        )
        self._idempotency = _hash(upload.idempotency_key) if upload.idempotency_key else None
        self.served: Registered | None = None
        """The outcome of an earlier attempt of the same request, if `reserve` has found one."""

    def _repeat(self) -> Registered | None:
        """Return the version that this request made before, if there is one.

        It is found by the Idempotency-Key, or because the newest version is equal to the request.
        """
        indexed = self._settled()
        for version in reversed(indexed.speaker.versions):
            if version.seq < indexed.deleting:
                return None  # a delete that began earlier would take the version from this caller
            if version.vuid == indexed.keyed:
                if version.record.request != self._request:
                    raise key_reused()
            elif version is not indexed.speaker.newest or not self._is_equal(version):
                continue
            return Registered(indexed, version, False, _jobs_of(indexed, version))
        return None

    def _is_equal(self, version: SpeakerVersion) -> bool:
        """Return whether a version that another request made also answers this request.

        The answer is remembered under this request's Idempotency-Key, so that a repeat gets the same one,
        whatever is registered in the meantime.
        """
        if not self._upload.dedupe or version.record.request != self._request:
            return False
        if self._idempotency is None:
            return True
        return self._index.remember_answer(self._id, version.vuid, self._idempotency)

    def _settled(self) -> IndexedSpeaker:
        """Return the speaker from the index, once a census has settled which of its versions count."""
        for _ in range(_TRIES):
            indexed = self._index.look(self._id, VersionSelection(idempotency=self._idempotency))
            if indexed.census == "settled":
                return indexed
            take_census(self._store, self._index, self._id, self._clock)
        raise GateClosed

    def _reserve(self, bytes_to_store: int, text_bytes: int) -> Reservation | None:
        """Reserve a place in the order of the speaker's facts. Returns None if the request is served already.

        After a refusal, the version is looked up again: another attempt of this request may have made it, or
        a census may have counted it.
        """
        settings = self._settings
        for _ in range(_TRIES):
            self.served = self._repeat()
            if self.served is not None:
                return None
            try:
                return self._index.reserve_version(
                    self._id,
                    max_speakers=settings.max_uploaded,
                    immutable=settings.registration_policy == "immutable" or self._upload.expects == "new",
                    present=self._upload.expects == "existing",
                    bytes_to_store=bytes_to_store,
                    max_stored_bytes=settings.max_stored_bytes,
                    text_bytes=text_bytes,
                    max_text_bytes=settings.max_text_bytes,
                    max_versions=settings.max_versions,
                    vuid=self._vuid,
                    request=self._request,
                    idempotency=self._idempotency,
                )
            except FactsDue:
                self._index.admit(self._id)
            except (CensusDue, AlreadyMade):
                continue
        raise GateClosed

    def reserve(self, source_bytes: int) -> None:
        """Reserve the place of a new version, or set `served` if an earlier attempt has made the version.

        Args:
            source_bytes: the size of the clip or embedding. The sizes of the texts are added, since Redis
                holds them.
        """
        settings, upload = self._settings, self._upload
        text_bytes = utf8_bytes(upload.name.name, upload.consent, upload.ref_text, upload.description)
        bytes_to_store = source_bytes + text_bytes
        try:
            place = self._reserve(bytes_to_store, text_bytes)
        except TooManyVersions:
            raise QuotaExceeded(
                f"Voice '{upload.name.name}' has {settings.max_versions} versions, which is as many as "
                "SPEAKER_MAX_VERSIONS accepts. Delete the voice, take another name, or raise the cap."
            ) from None
        except NamespaceFull:
            raise QuotaExceeded(
                f"Upload of {bytes_to_store} bytes refused: all uploads together may take "
                f"{settings.max_stored_bytes}, see GET /v1/quota. Delete a voice before registering more, or "
                "raise the cap via SPEAKER_MAX_BYTES."
            ) from None
        except TextsFull:
            raise QuotaExceeded(
                f"Upload with {text_bytes} bytes of texts refused: the names, consents, 'ref_text's and "
                f"descriptions of all versions together may take {settings.max_text_bytes}, see GET "
                "/v1/quota. Delete a voice before registering more, shorten the texts, or raise the cap via "
                "SPEAKER_MAX_TEXT_BYTES."
            ) from None
        except QuotaExceeded:
            raise QuotaExceeded(
                f"Uploaded voice limit reached ({settings.max_uploaded}). Delete an existing voice before "
                "registering a new one, or raise the cap via SPEAKER_MAX_UPLOADED."
            ) from None
        except VoiceExists:
            raise _voice_exists(upload.name, immutable=settings.registration_policy == "immutable") from None
        except VoiceNotFound:
            raise voice_to_register(upload.name.name) from None
        if place is not None:
            self._place, self._vuid = place, place.vuid

    def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs, given as SHA-256 -> bytes."""
        self._run_all(
            partial(store_clip, self._store, self._id, self._vuid, sha256, data)
            for sha256, data in blobs.items()
        )

    def put_given(self, profile: Profile, embedding: np.ndarray) -> ArtifactRecord:
        """Store the embedding as the artifact of a profile."""
        data, record = package(
            self._record(source="embedding", embedding_width=len(embedding)),
            profile,
            {"speaker_embedding": embedding},
            fingerprint=GIVEN_FINGERPRINT,
            attempt=self._vuid,
        )
        store_artifact(self._store, self._id, self._vuid, given_key(profile.name), record, data=data)
        return record

    def _record(self, **source: Any) -> VersionRecord:
        return VersionRecord(
            vuid=self._vuid,
            number=self._place.number,
            created_at=self._place.created_at,
            name=self._upload.name.name,
            consent=self._upload.consent,
            ref_text=self._upload.ref_text,
            description=self._upload.description,
            idempotency=self._idempotency,
            request=self._request,
            **source,
        )

    def commit(self, **source: Any) -> Registered:
        """Commit the version fact, apply it to the index, and start the extractions."""
        record = self._record(**source)
        if self._clock.monotonic() - self._started > COMMIT_SECONDS:
            raise Unavailable("Storing the clip took too long; send it again.", retry_after_seconds=1)
        commit(self._store, self._id.version_key(self._place.seq, record), record.to_json().encode())
        if not self._index.apply_version(self._id, self._place.seq, record):
            raise VoiceDeleted(f"Voice '{record.name}' was deleted while this version was being registered.")
        version = SpeakerVersion(seq=self._place.seq, record=record)
        jobs = self._start_extractions(version)
        log.info("version.registered", speaker=str(self._id), vuid=self._vuid, number=record.number)
        now = self._index.look(self._id, VersionSelection(vuid=self._vuid))
        return Registered(*_current_state(now, version), True, jobs)

    def _start_extractions(self, version: SpeakerVersion) -> dict[str, str]:
        """Claim a job for each required profile, or promote a version that needs no extraction.

        The version is committed, so failures from here on do not fail the request: housekeeping repairs them.
        """
        jobs: dict[str, str] = {}
        try:
            if version.extractable:
                self._extract(version, jobs)
            elif self._promoter.promote(self._id):
                self._leases.settle()
        except Unavailable as error:
            log.warning("version.not_set_going", speaker=str(self._id), vuid=version.vuid, error=str(error))
        return jobs

    def _extract(self, version: SpeakerVersion, jobs: dict[str, str]) -> None:
        for profile in self._catalogue.required_profiles:
            if unsupported_reason(version, profile) is None:
                claim = self._extractions.claim(self._id, version, profile)
                if claim.job_id:
                    jobs[profile.name] = claim.job_id


def _current_state(indexed: IndexedSpeaker, made: SpeakerVersion) -> tuple[IndexedSpeaker, SpeakerVersion]:
    """Return the version as the index knows it now, because a worker may have made its artifacts already.

    If a delete has removed it in the meantime, the version is returned as it was made.
    """
    found = indexed.speaker.by_vuid(made.vuid) if indexed.speaker.live else None
    if found is not None:
        return indexed, found
    return IndexedSpeaker(Speaker(versions=(made,))), made


def _hash(*parts: str | None) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def _jobs_of(indexed: IndexedSpeaker, version: SpeakerVersion) -> dict[str, str]:
    return {
        pending.profile: pending.job_id
        for pending in indexed.pending_extractions
        if pending.vuid == version.vuid
    }
