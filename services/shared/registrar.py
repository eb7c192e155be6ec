"""What can be done to speakers: register, delete, look up, extract, promote. The one door to bucket and
index for the API.

Order of every write: blobs, then the fact (the commit), then the index. A crash between any two of them
leaves what was
served before; housekeeping finishes what was committed. Knows no HTTP and no encoder.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import structlog

from services.shared.announcements import Announcements
from services.shared.audio import DecodedClip
from services.shared.clock import Clock
from services.shared.domain import (
    AUTOMATIC,
    AliasFact,
    ArtifactRecord,
    ClipRecord,
    Speaker,
    SpeakerVersion,
    TombstoneFact,
    VersionRecord,
    artifact_key,
)
from services.shared.facts import SpeakerId, read_certain, read_speaker, speaker_ids
from services.shared.index import COMMIT_SECONDS, AliasMoved, Claim, GateClosed, SpeakerIndex
from services.shared.index_reading import IndexedSpeaker
from services.shared.profiles import Profile, ProfileCatalogue
from services.shared.queue import queue_name
from services.shared.settings import RegistrySettings
from services.shared.status import Standing, standing, unsupported_reason, wanted_profiles, worst
from services.shared.store import Store
from speaker_registry.artifact import (
    Manifest,
    canonical_json,
    check_tensors,
    content_digest,
    describe,
    encode,
    sha256_digest,
)
from speaker_registry.errors import (
    CacheUnsupported,
    EmbeddingWidthMismatch,
    IdempotencyKeyReused,
    PreconditionFailed,
    QuotaExceeded,
    Unavailable,
    VoiceDeleted,
    VoiceExists,
    VoiceNotFound,
)
from speaker_registry.names import DEFAULT, LATEST, SpeakerName, parse_speaker_name
from speaker_registry.schemas import ArtifactState

log = structlog.get_logger()

GIVEN_FINGERPRINT = "given"
"""Of an artifact that came with the registration: no encoder made it, so none can make it stale."""


class Dispatcher(Protocol):
    """Hands jobs to workers. Ids only: no audio, no names, no transcripts."""

    def enqueue(self, job_id: str, profile: str, arguments: Mapping[str, Any]) -> None:
        """Once or more: the same job again does no harm."""

    def state(self, job_id: str, profile: str) -> str:
        """`alive` (queued or running), `failed` (given up), or `gone`."""


def one_by_one(steps: Iterable[Callable[[], object]]) -> None:
    """Run steps that do not depend on each other. Processes do it at once (`opening.AtOnce`)."""
    for step in steps:
        step()


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What a caller says about a voice besides its source."""

    name: SpeakerName
    consent: str
    ref_text: str | None = None
    description: str | None = None
    idempotency_key: str | None = None
    dedupe: bool = True
    """The same clip with the same words as the newest version is that version, not a new one."""


@dataclass(frozen=True, slots=True)
class Registered:
    """Outcome of a registration. `created` is False where the same request had been served before."""

    indexed: IndexedSpeaker
    version: SpeakerVersion
    created: bool
    jobs: Mapping[str, str]
    """Profile -> job that extracts it."""


class Registrar:
    """Every method takes a namespace first and raises our errors: `VoiceNotFound`, `Unavailable`, …"""

    def __init__(
        self,
        *,
        store: Store,
        index: SpeakerIndex,
        announcements: Announcements,
        catalogue: ProfileCatalogue,
        dispatcher: Dispatcher,
        settings: RegistrySettings,
        clock: Clock,
        run_all: Callable[[Iterable[Callable[[], object]]], None] = one_by_one,
    ) -> None:
        self.store = store
        self.index = index
        self.announcements = announcements
        self.catalogue = catalogue
        self.dispatcher = dispatcher
        self.settings = settings
        self.clock = clock
        self.run_all = run_all

    # -- reading

    def find(self, namespace: str, name: str) -> IndexedSpeaker:
        """A live speaker by its name. Raises `InvalidVoiceName`, `VoiceNotFound`."""
        indexed = self.look_up(SpeakerId.of(namespace, parse_speaker_name(name)))
        if not indexed.speaker.live:
            raise VoiceNotFound(f"Voice '{name}' not found", param="name")
        return indexed

    def look_up(self, speaker_id: SpeakerId) -> IndexedSpeaker:
        """From the index; from the facts themselves while the index cannot be trusted or reached."""
        try:
            return self.index.load(speaker_id)
        except (GateClosed, Unavailable):
            return IndexedSpeaker(read_certain(self.store, speaker_id))

    def truth(self, speaker_id: SpeakerId) -> Speaker:
        """What the facts say, whatever the index does."""
        return read_speaker(self.store, speaker_id)

    def artifact_file_key(
        self, speaker_id: SpeakerId, version: SpeakerVersion, record: ArtifactRecord
    ) -> str:
        """Where the bytes of an artifact lie."""
        if record in version.record.given:
            return speaker_id.artifact_blob_key(version.vuid, given_key(record.profile), record)
        base = self.artifact_base(version, record.profile, record.fingerprint)
        return speaker_id.artifact_blob_key(version.vuid, f"{base}-{record.build}", record)

    def page(self, namespace: str, *, after: str = "", limit: int) -> tuple[list[IndexedSpeaker], bool]:
        """Live speakers by key, from the one after `after`, and whether there are more."""
        try:
            while True:
                keys = self.index.names(namespace, after=after, limit=limit + 1)
                ids = [SpeakerId.of(namespace, SpeakerName(key, key)) for key in keys[:limit]]
                found = [indexed for indexed in self.index.load_many(ids) if indexed.speaker.live]
                if found or len(keys) <= limit:
                    return found, len(keys) > limit
                # All of them were deleted meanwhile: an empty page would give no cursor to go on from.
                after = keys[limit - 1]
        except (GateClosed, Unavailable):
            return self._page_of_facts(namespace, after, limit)

    def _page_of_facts(self, namespace: str, after: str, limit: int) -> tuple[list[IndexedSpeaker], bool]:
        ids = [speaker_id for speaker_id in speaker_ids(self.store) if speaker_id.namespace == namespace]
        speakers = [speaker for speaker in (read_certain(self.store, one) for one in ids) if speaker.live]
        by_key = {speaker.newest.record.name.lower(): speaker for speaker in speakers}
        keys = sorted(key for key in by_key if key > after)
        return [IndexedSpeaker(by_key[key]) for key in keys[:limit]], len(keys) > limit

    def standing(self, indexed: IndexedSpeaker, version: SpeakerVersion, profile: str) -> Standing:
        """Where a version is with one profile. Raises `ProfileUnknown`."""
        facts = self.catalogue.get(profile)
        return standing(indexed, version, facts, self.announcements.current(profile))

    def standings(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> list[Standing]:
        """With every profile that is wanted of this version, and any other it has an artifact or a job of."""
        present = {record.profile for record in (*version.record.given, *version.artifacts.values())}
        present |= {flight.profile for flight in indexed.flights if flight.vuid == version.vuid}
        names = dict.fromkeys((*self.wanted(version), *sorted(present & self.catalogue.names)))
        return [self.standing(indexed, version, name) for name in names]

    def state(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> ArtifactState:
        """Of the version as a whole: the worst over what is wanted of it."""
        return worst(self.standing(indexed, version, profile) for profile in self.wanted(version))

    def wanted(self, version: SpeakerVersion) -> tuple[str, ...]:
        return wanted_profiles(version, self.catalogue.required)

    def resolve(self, indexed: IndexedSpeaker, reference: int | str) -> SpeakerVersion:
        """The version a reference stands for. Raises `VersionNotFound`, `AliasNotFound`."""
        versions = indexed.speaker.versions if reference == LATEST else ()
        complete = frozenset(one.vuid for one in versions if self.state(indexed, one) == "ready")
        return indexed.speaker.resolve(reference, complete)

    # -- registering

    def register_clip(self, namespace: str, upload: Upload, data: bytes, clip: DecodedClip) -> Registered:
        """Store a checked clip as a new version and start extracting it.

        Args:
            data: the clip's bytes as uploaded. clip: the same, decoded and found good.

        Raises:
            QuotaExceeded, VoiceExists, VoiceDeleted, IdempotencyKeyReused, Unavailable: nothing is served
            that was not.
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
        registration = _Registration(self, namespace, upload, facts.sha256)
        if registration.served is not None:
            return registration.served
        registration.reserve()
        registration.put_blobs({facts.sha256: data, facts.rendition_sha256: rendition})
        return registration.commit(source="audio", clip=facts)

    def register_embedding(self, namespace: str, upload: Upload, embedding: np.ndarray) -> Registered:
        """Store a ready speaker embedding (float32 [D], finite) as a new version; it is an artifact at once.

        Raises:
            EmbeddingWidthMismatch: no profile here takes that width. Else as `register_clip`.
        """
        profiles = self._profiles_taking(embedding)
        source = hashlib.sha256(embedding.tobytes()).hexdigest()
        registration = _Registration(self, namespace, upload, source)
        if registration.served is not None:
            return registration.served
        registration.reserve()
        given = tuple(registration.put_given(profile, embedding) for profile in profiles)
        return registration.commit(source="embedding", embedding_width=len(embedding), given=given)

    def _profiles_taking(self, embedding: np.ndarray) -> list[Profile]:
        profiles = self.catalogue.taking_embeddings_of(len(embedding))
        if not profiles:
            widths = sorted(
                {profile.embedding_width for profile in self.catalogue if profile.embedding_width}
            )
            raise EmbeddingWidthMismatch(
                f"'speaker_embedding' has {len(embedding)} elements; the profiles here take {widths}.",
                param="speaker_embedding",
            )
        return profiles

    # -- deleting

    def delete(
        self, namespace: str, name: str, *, check: Callable[[IndexedSpeaker], None] | None = None
    ) -> IndexedSpeaker:
        """Unresolvable at once, with all its versions and jobs. Returns what was there.

        Args:
            check: raises if this is not what is to be deleted.

        Raises:
            VoiceNotFound; PreconditionFailed: it changed after it was checked.
        """
        speaker_id = SpeakerId.of(namespace, parse_speaker_name(name))
        before = self.index.load(speaker_id)
        if check is not None and before.speaker.live:
            check(before)
        try:
            unchanged = before.speaker.seq if check is not None else None
            place = self.index.reserve_tombstone(speaker_id, unchanged=unchanged)
        except VoiceNotFound:
            raise VoiceNotFound(f"Voice '{name}' not found", param="name") from None
        except AliasMoved:
            raise PreconditionFailed(f"Voice '{name}' has just changed.", param="If-Match") from None
        fact = TombstoneFact(place.seq, place.number, place.created_at)
        self.store.put(speaker_id.tombstone_key(fact, self.clock.new_id()), b"{}")
        killed = self.index.apply_tombstone(speaker_id, place.seq, place.number, place.created_at)
        log.info("speaker.deleted", speaker=str(speaker_id), versions=killed)
        return before

    # -- extracting

    def ensure(
        self, speaker_id: SpeakerId, version: SpeakerVersion, profiles: Sequence[str], *, force: bool = False
    ) -> dict[str, Claim]:
        """See to it that each profile's artifact exists or is being made; join what is in flight already.

        Args:
            force: extract again even if there is an artifact (it serves until the new one is ready) or a
            failure.

        Raises:
            ProfileUnknown; CacheUnsupported: nothing can be extracted for it.
        """
        claims = {}
        for name in profiles:
            profile = self.catalogue.get(name)
            if version.record.given and version.artifact(name) is not None and not force:
                claims[name] = Claim("ready")
                continue
            if reason := unsupported_reason(version, profile):
                raise CacheUnsupported(reason[0].upper() + reason[1:] + ".", param="profile")
            claims[name] = self.claim(speaker_id, version, profile, force=force)
        return claims

    def claim(
        self,
        speaker_id: SpeakerId,
        version: SpeakerVersion,
        profile: Profile,
        *,
        force: bool = False,
        steal: str | None = None,
    ) -> Claim:
        """One claim, and the job behind it if the claim is ours."""
        announced = self.announcements.current(profile.name)
        fingerprint = announced.fingerprint if announced else ""
        job_id = f"job_{self.clock.new_id()}"

        claim = self.index.claim(
            speaker_id,
            vuid=version.vuid,
            profile=profile.name,
            fingerprint=fingerprint,
            base=self.artifact_base(version, profile.name, fingerprint) if fingerprint else "",
            force=force,
            steal=steal,
            job={
                "id": job_id,
                "ns": speaker_id.namespace,
                "slug": speaker_id.slug,
                "name": version.record.name,
                "vuid": version.vuid,
                "number": version.number,
                "profile": profile.name,
                "fingerprint": fingerprint,
                "forced": force,
                "max_attempts": self.settings.max_attempts,
                "queue": queue_name(profile.name),
                "attempt": 0,
            },
        )
        if claim.outcome == "claimed":
            self.dispatcher.enqueue(job_id, profile.name, {"job": job_id, "speaker": str(speaker_id)})
        return claim

    def artifact_base(self, version: SpeakerVersion, profile: str, fingerprint: str) -> str:
        """The artifact key without its build."""
        assert version.record.clip is not None
        return artifact_key(profile, fingerprint, version.record.clip.rendition_sha256, 0).rpartition("-")[0]

    # -- promoting

    def promote(self, speaker_id: SpeakerId) -> None:
        """Move `default` to the newest complete version, unless somebody moved it after that one was
        registered.
        """
        fact = self.prepare_promotion(speaker_id)
        if fact is not None:
            self.index.apply_alias(speaker_id, fact)

    def prepare_promotion(
        self, speaker_id: SpeakerId, *, completing: tuple[str, str] | None = None
    ) -> AliasFact | None:
        """The first half of `promote`: the fact is put, the index not told yet. None: nothing to promote.

        Args:
            completing: (vuid, profile) of an artifact that is to be taken for ready: so its publisher can
            have both
                take effect at once.
        """
        indexed = self.index.load(speaker_id)
        target = self._to_promote(indexed, completing)
        if target is None:
            return None
        try:
            seq = self.index.reserve_alias(speaker_id, DEFAULT, automatic=True)
        except VoiceNotFound:
            return None
        fact = AliasFact(seq, DEFAULT, target.vuid, AUTOMATIC + self.clock.new_id())
        self.store.put(speaker_id.alias_key(fact), b"{}")
        log.info("speaker.promoted", speaker=str(speaker_id), version=target.number)
        return fact

    def _to_promote(
        self, indexed: IndexedSpeaker, completing: tuple[str, str] | None
    ) -> SpeakerVersion | None:
        speaker = indexed.speaker
        if not speaker.live:
            return None
        moved = speaker.alias_facts.get(DEFAULT)
        chosen = moved.seq if moved is not None and not moved.automatic else 0
        for version in reversed(speaker.versions):
            if version.number <= speaker.default.number or version.seq < chosen:
                return None
            if self._complete(indexed, version, completing):
                return version
        return None

    def _complete(
        self, indexed: IndexedSpeaker, version: SpeakerVersion, completing: tuple[str, str] | None
    ) -> bool:
        return all(
            (version.vuid, profile) == completing or self.standing(indexed, version, profile).state == "ready"
            for profile in self.wanted(version)
        )


class _Registration:
    """One registration on its way: recognised as a repeat, or reserved, stored, committed."""

    def __init__(self, registrar: Registrar, namespace: str, upload: Upload, source_sha256: str) -> None:
        self._registrar = registrar
        self._clock = registrar.clock
        self._upload = upload
        self._id = SpeakerId.of(namespace, upload.name)
        self._started = self._clock.monotonic()
        self._vuid = self._clock.new_id()
        self._request = _hash(
            upload.name.name, source_sha256, upload.ref_text, upload.consent, upload.description
        )
        self._idempotency = _hash(upload.idempotency_key) if upload.idempotency_key else None
        self.served = self._repeat()

    def _repeat(self) -> Registered | None:
        """The version this request made before: by its Idempotency-Key, or because the newest one is just
        this.
        """
        indexed = self._registrar.index.load(self._id)
        for version in reversed(indexed.speaker.versions):
            if version.seq < indexed.deleting:
                return None  # whoever wants it now must not lose it to a delete from before
            newest = version is indexed.speaker.newest
            if self._idempotency and version.record.idempotency == self._idempotency:
                if version.record.request != self._request:
                    raise IdempotencyKeyReused("This Idempotency-Key was used for another request.")
            elif not (newest and self._upload.dedupe and version.record.request == self._request):
                continue
            return Registered(indexed, version, False, _jobs_of(indexed, version))
        return None

    def reserve(self) -> None:
        settings = self._registrar.settings
        try:
            self._place = self._registrar.index.reserve_version(
                self._id,
                max_speakers=settings.max_uploaded,
                immutable=settings.registration_policy == "immutable",
                vuid=self._vuid,
                request=self._request,
                idempotency=self._idempotency,
            )
        except QuotaExceeded:
            raise QuotaExceeded(
                f"Uploaded voice limit reached ({settings.max_uploaded}). Delete an existing voice before "
                "registering a new one, or raise the cap via SPEAKER_MAX_UPLOADED."
            ) from None
        except VoiceExists:
            key = self._upload.name.key
            raise VoiceExists(
                f"Voice '{self._upload.name.name}' already exists and VLLM_OMNI_SPEAKER_REGISTRATION_POLICY "
                f"is 'immutable'; delete it first via DELETE /v1/audio/voices/{key}."
            ) from None
        self._vuid = self._place.vuid

    def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """By sha256."""
        store, keys = self._registrar.store, self._id
        self._registrar.run_all(
            partial(store.put, keys.blob_key(self._vuid, sha256), data) for sha256, data in blobs.items()
        )

    def put_given(self, profile: Profile, embedding: np.ndarray) -> ArtifactRecord:
        """Store a ready embedding as the artifact it is."""
        tensors = {"speaker_embedding": embedding}
        check_tensors(tensors, profile.tensors)
        manifest = Manifest(
            profile=profile.name,
            model_type=profile.model_type,
            fingerprint=GIVEN_FINGERPRINT,
            voice=self._upload.name.name,
            version=self._place.number,
            version_id=self._vuid,
            created_at=self._place.created_at,
            source="embedding",
            ref_text=self._upload.ref_text,
            consent=self._upload.consent,
        )
        data = encode(tensors, manifest)
        record = ArtifactRecord(
            profile=profile.name,
            fingerprint=GIVEN_FINGERPRINT,
            attempt=self._vuid,
            digest=sha256_digest(data),
            content_digest=content_digest(tensors),
            size=len(data),
            tensors=describe(tensors),
        )
        self._registrar.store.put(
            self._id.artifact_blob_key(self._vuid, given_key(profile.name), record), data
        )
        return record

    def commit(self, **source: Any) -> Registered:
        """The version fact, then the index, then the jobs."""
        registrar = self._registrar
        record = VersionRecord(
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
        if self._clock.monotonic() - self._started > COMMIT_SECONDS:
            raise Unavailable("Storing the clip took too long; send it again.", retry_after_seconds=1)
        registrar.store.put(self._id.version_key(self._place.seq, record), record.to_json().encode())
        if not registrar.index.apply_version(self._id, self._place.seq, record):
            raise VoiceDeleted(f"Voice '{record.name}' was deleted while this version was being registered.")
        version = SpeakerVersion(seq=self._place.seq, record=record)
        jobs = self._extract(version)
        log.info("version.registered", speaker=str(self._id), vuid=self._vuid, number=record.number)
        return Registered(registrar.index.load(self._id), version, True, jobs)

    def _extract(self, version: SpeakerVersion) -> dict[str, str]:
        """The version is committed: what goes wrong from here on is housekeeping's to repair, not the
        caller's.
        """
        registrar = self._registrar
        jobs = {}
        try:
            for name in registrar.wanted(version):
                profile = registrar.catalogue.get(name)
                if version.extractable and unsupported_reason(version, profile) is None:
                    claim = registrar.claim(self._id, version, profile)
                    if claim.job_id:
                        jobs[name] = claim.job_id
        except Unavailable as error:
            log.warning("extraction.not_started", speaker=str(self._id), vuid=version.vuid, error=str(error))
        return jobs


def given_key(profile: str) -> str:
    """Where an artifact that came with the registration lies within its version."""
    return f"given-{profile}-1"


def _hash(*parts: str | None) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def _jobs_of(indexed: IndexedSpeaker, version: SpeakerVersion) -> dict[str, str]:
    return {flight.profile: flight.job_id for flight in indexed.flights if flight.vuid == version.vuid}
