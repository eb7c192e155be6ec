"""Registers a speaker's next version: stores its bytes, and commits it to the speaker's document.

A repeated request is answered with the version that the first one made. Until the commit, the previous
version is served. This module knows no HTTP and no encoder.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

import structlog

from services.registry_api.operations.sources import Source
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.changes import with_version
from services.shared.model.document import Counts, SpeakerDocument, key_reused
from services.shared.model.numbering import Numbering, next_marks, registered_as
from services.shared.model.records import Version
from services.shared.model.speaker import SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.registry.extract import extract_missing, extract_restored
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.artifact import canonical_json
from speaker_registry.errors import (
    Conflict,
    QuotaExceeded,
    Unavailable,
    VoiceDeleted,
    VoiceExists,
    VoiceNotFound,
)
from speaker_registry.names import SpeakerName, VoiceId

log = structlog.get_logger(__name__)


Expects = Literal["any", "new", "existing"]
"""This says whether the voice must be new, must exist already, or may be either. An upload that adds no
version is not refused.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """The fields of an upload besides its source."""

    name: SpeakerName
    consent: str
    ref_text: str | None = None
    description: str | None = None
    idempotency_key: str | None = None
    expects: Expects = "any"
    voice_id: VoiceId | None = None
    """The id of the voice that gets the version. If it is set, no other voice of this name gets it."""
    dedupe: bool = True
    """True if an upload with the same source and texts as the newest version returns that version."""
    numbering: Numbering | None = None
    """The number, time and id that an operator wants. If they are set, a request counts as a repeat only of
    the version with this number.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a namespace and of a voice. Settings hold the values."""

    voices: int
    bytes: int
    text_bytes: int
    versions: int
    immutable: bool = False
    """True if a voice may have one version only."""

    def check(self, document: SpeakerDocument, version: Version, size: int, used: Counts) -> None:
        """Raise `QuotaExceeded` or `VoiceExists` if the version may not be added.

        Args:
            used: the usage of the namespace. While the view is being rebuilt, only voices that it already
                holds count.
        """
        name = version.name
        if self.immutable and document.live:
            raise VoiceExists(
                f"Voice '{name}' already exists and VLLM_OMNI_SPEAKER_REGISTRATION_POLICY is 'immutable'; "
                f"delete it first via DELETE /v1/audio/voices/{document.key}."
            )
        if len(document.versions) >= self.versions:
            raise QuotaExceeded(
                f"Voice '{name}' has {len(document.versions)} versions, and SPEAKER_MAX_VERSIONS accepts "
                f"{self.versions}. Delete one of them, or take another name."
            )
        self._check_namespace(document, version, size, used)
        self._check_deleted(used)

    def have_room(self, used: Counts, added: Counts) -> bool:
        """Return whether a namespace with the usage `used` has room for `added`."""
        return (
            (not added.voices or used.voices + added.voices <= self.voices)
            and (not added.bytes or used.bytes + added.bytes <= self.bytes)
            and (not added.text_bytes or used.text_bytes + added.text_bytes <= self.text_bytes)
        )

    def _check_namespace(self, document: SpeakerDocument, version: Version, size: int, used: Counts) -> None:
        if not document.live and used.voices >= self.voices:
            raise QuotaExceeded(
                f"Uploaded voice limit reached ({self.voices}). Delete an existing voice before registering "
                "a new one, or raise the cap via SPEAKER_MAX_UPLOADED."
            )
        if used.bytes + size + version.text_bytes > self.bytes:
            raise QuotaExceeded(
                f"Upload of {size + version.text_bytes} bytes refused: all uploads together may take "
                f"{self.bytes}, see GET /v1/quota. Delete a voice before registering more, or raise the cap "
                "via SPEAKER_MAX_BYTES."
            )
        if used.text_bytes + version.text_bytes > self.text_bytes:
            raise QuotaExceeded(
                f"Upload with {version.text_bytes} bytes of texts refused: the names, consents, 'ref_text's "
                f"and descriptions of all versions together may take {self.text_bytes}, see GET /v1/quota. "
                "Delete a voice before registering more, shorten the texts, or raise the cap via "
                "SPEAKER_MAX_TEXT_BYTES."
            )

    def _check_deleted(self, used: Counts) -> None:
        """Refuse an upload while deleted voices take as much room as live voices may.

        Otherwise a caller that registers and deletes in turn could fill the bucket and Redis for all others.
        """
        if used.deleted_bytes > self.bytes or used.deleted_text_bytes > self.text_bytes:
            raise QuotaExceeded(
                f"Voices and versions that were deleted still take {used.deleted_bytes} bytes, and their "
                f"records {used.deleted_text_bytes}; accepted: {self.bytes} and {self.text_bytes}, as for "
                "live ones. They are erased after SPEAKER_HOUSEKEEPING_DELETED_GRACE_SECONDS, see GET "
                "/v1/quota. Register later, or raise SPEAKER_MAX_BYTES and SPEAKER_MAX_TEXT_BYTES."
            )


@dataclass(frozen=True, slots=True)
class Registered:
    """The outcome of a registration."""

    speaker: FoundSpeaker
    version: Version
    created: bool
    """False if the request was answered with an existing version."""
    jobs: Mapping[str, str]
    """The ids of the jobs by profile."""


def register(
    speakers: Speakers,
    blobs: StoredBytes,
    jobs: Jobs,
    profiles: Profiles,
    *,
    limits: Limits,
    namespace: str,
    upload: NewVersion,
    source: Source,
    by: str,
) -> Registered:
    """Store a source as the next version of a speaker, and start its extractions.

    Raises:
        QuotaExceeded, VoiceExists, VoiceDeleted, IdempotencyKeyReused: no version was added.
        Conflict, InvalidRequest: the version cannot have the number, time or id that an operator wants.
        Unavailable: the version may or may not have been added. The request can be repeated safely.
    """
    speaker_id, until = SpeakerId.of(namespace, upload.name), speakers.deadline()
    with (
        speakers.changing(speaker_id, by=by, until=until) as change,
        speakers.reserving(speaker_id, change.document) as used,
    ):
        new = _new_version(upload, source, vuid=change.token)
        adding = _Adding(speakers, blobs, profiles, limits, used, speaker_id, upload, source, new)
        if adding.answer(change.document) is not None:
            confirmed = change.commit(lambda document: document, did="repeat")
            if (answer := adding.answer(confirmed)) is not None:
                answer = _remembered(speakers, speaker_id, confirmed, new, answer)
                source.restore(blobs, speaker_id, answer)
                return _registered(
                    speakers, jobs, profiles, speaker_id, confirmed, version=answer, created=False
                )
        change.ask(adding.check)
        life = change.document.marks.life
        source.store(blobs, speaker_id, new.vuid)
        document = change.commit(
            lambda document: adding.added(document, life=life),
            did="register",
            done=lambda found: new.vuid in found.names_of_bytes,
            max_bytes=speakers.max_document_bytes,
        )
    mine = document.version(new.vuid)
    version = mine or adding.answer(document)
    if version is None:
        raise VoiceDeleted(f"Voice '{new.name}' was deleted while this version was being registered.")
    if mine is None:
        version = _remembered(speakers, speaker_id, document, new, version)
    else:
        log.info("version.registered", speaker=str(speaker_id), vuid=version.vuid, number=version.number)
    return _registered(
        speakers, jobs, profiles, speaker_id, document, version=version, created=mine is not None
    )


@dataclass(frozen=True, slots=True)
class _Adding:
    """Decides about one upload on the newest document of its speaker."""

    speakers: Speakers
    blobs: StoredBytes
    profiles: Profiles
    limits: Limits
    used: Counts
    speaker_id: SpeakerId
    upload: NewVersion
    source: Source
    new: Version

    def answer(self, document: SpeakerDocument) -> Version | None:
        """Return the version that the request made before, or that equals what it asks for.

        The remembered answer is looked up each time: a repeat of this request may have been answered while
            this one was suspended.
        """
        key = self.new.idempotency
        remembered = self.speakers.answers.of(self.speaker_id, key) if key else None
        return _answer(document, self.new, self.upload, remembered)

    def check(self, document: SpeakerDocument) -> None:
        """Raise an error of the registry if the document cannot take the version."""
        self._numbered(document, self.speakers.now())

    def _numbered(self, document: SpeakerDocument, now: int) -> Version:
        """Return the version with its number and time in the document. Raises the same errors as `check`."""
        _check_expected(document, self.upload)
        marks = next_marks(document, now, self.upload.numbering)
        self.limits.check(document, self.new, self.source.size, self.used)
        return self.new.having(number=marks.number, created_at=marks.created_at)

    def added(self, document: SpeakerDocument, *, life: int) -> SpeakerDocument:
        """Return the document with the version, or unchanged if it already has a version that answers the
        request.
        """
        if self.answer(document) is not None:
            return document
        now = self.speakers.now()
        numbered = self._numbered(document, now)
        return with_version(
            document,
            self.source.number(self.blobs, self.speaker_id, numbered),
            self.profiles.required,
            key=self.upload.name.key,
            life=life,
            now=now,
            numbering=self.upload.numbering,
        )


def _registered(
    speakers: Speakers,
    jobs: Jobs,
    profiles: Profiles,
    speaker_id: SpeakerId,
    document: SpeakerDocument,
    *,
    version: Version,
    created: bool,
) -> Registered:
    """Start the extractions that the version lacks. The version is committed, so housekeeping repairs later
    failures.

    Args:
        document: a document that has the version. It may have been deleted since.
    """
    speaker, opened = FoundSpeaker(document, id=speaker_id), dict[str, str]()
    try:
        if not created:
            jobs.forget_drawing(version)
        speaker = _present(speakers, speaker, version)
        opened = extract_missing(jobs, profiles, speaker, version)
        opened |= extract_restored(jobs, profiles, speaker, version)
        speaker = _present(speakers, speaker, version)
    except Unavailable as error:
        log.warning("version.extractions_not_started", speaker=str(speaker_id), reason=error.message)
    open_jobs = {job.profile: job.job_id for job in speaker.open_jobs if job.vuid == version.vuid}
    shown = speaker.document.version(version.vuid)
    assert shown is not None, "`_present` returns a speaker that has the version"
    return Registered(speaker, shown, created, {**open_jobs, **opened})


def _present(speakers: Speakers, known: FoundSpeaker, version: Version) -> FoundSpeaker:
    """Return the speaker as it is now, or as it is known if the version was deleted since."""
    found = speakers.read(known.id)
    return known if found.document.version(version.vuid) is None else found


def _remembered(
    speakers: Speakers, speaker_id: SpeakerId, document: SpeakerDocument, new: Version, answer: Version
) -> Version:
    """Remember a request's answer under its Idempotency-Key, so that a repeat gets the same one.

    Returns the remembered answer, which may be that of an earlier request with the same key.
    """
    if new.idempotency is None or answer.idempotency == new.idempotency:
        return answer
    vuid = speakers.answers.remember(speaker_id, new.idempotency, answer.vuid)
    return document.version(vuid) or answer


def _check_expected(document: SpeakerDocument, upload: NewVersion) -> None:
    if upload.voice_id is not None and not document.is_known_by(upload.voice_id.version_id):
        raise VoiceDeleted(
            f"Voice '{upload.name.name}' was deleted, and its name may have been registered again since. "
            "Nothing was added.",
            param="name",
        )
    if upload.expects == "new" and document.live:
        raise VoiceExists(
            f"Voice '{upload.name.name}' already exists. Add a version with POST "
            f"/v1/voices/{quote(upload.name.key, safe='')}/versions, or take another name.",
            param="name",
        )
    if upload.expects == "existing" and not document.live:
        raise voice_to_register(upload.name)


def voice_to_register(name: SpeakerName) -> VoiceNotFound:
    """Return the error for a further version of a voice that does not exist."""
    return VoiceNotFound(f"Voice '{name.name}' not found. Register it with POST /v1/voices.", param="name")


def _new_version(upload: NewVersion, source: Source, *, vuid: str) -> Version:
    name = upload.name.name
    parts = (name, source.sha256, upload.ref_text, upload.consent, upload.description)
    return source.describe(
        Version(
            vuid=vuid,
            given_id=upload.numbering.id if upload.numbering else None,
            name=name,
            source="audio",
            consent=upload.consent,
            ref_text=upload.ref_text,
            description=upload.description,
            request=_hash(*parts),
            idempotency=_hash(upload.idempotency_key) if upload.idempotency_key else None,
        )
    )


def _answer(
    document: SpeakerDocument, new: Version, upload: NewVersion, remembered: str | None
) -> Version | None:
    """Return the version that the request made before, or that equals what it asks for.

    Args:
        remembered: the id of the version that an earlier request with the same key was answered with.

    Raises:
        IdempotencyKeyReused: the key was used for another request.
        Conflict: another version has the number that an operator wants.
        VoiceExists, VoiceDeleted: it has, and the voice is not one that the upload accepts.
    """
    assert new.request is not None
    if upload.numbering is not None:
        try:
            return registered_as(document, upload.numbering, new.request)
        except Conflict:
            _check_expected(document, upload)  # another voice has another version of this number
            raise
    if remembered is not None and (known := document.version(remembered)) is not None:
        if known.request != new.request:
            raise key_reused()
        return known
    found = document.answer_to(new.request, new.idempotency)
    if found is None or upload.dedupe or (new.idempotency and found.idempotency == new.idempotency):
        return found
    return None


def _hash(*parts: str | None) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()
