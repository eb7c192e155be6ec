"""Renders speakers as voices: turns records into the answers of `speaker_registry.schemas`, without any
decisions.
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from services.registry_api.campaigns.campaign import NO_WORKER
from services.registry_api.operations.artifacts import ANY, FoundArtifact, Wanted
from services.registry_api.operations.register import Registered
from services.shared.model.decisions import Decision
from services.shared.model.document import SpeakerDocument
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.past import Happened
from services.shared.model.promotion import held_back
from services.shared.model.records import ArtifactRecord, Version
from services.shared.model.status import ProfileStatus, given_profiles, worst
from services.shared.queue.rq_jobs import is_preparation
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker
from services.shared.view.job_records import STAGES, JobRecord
from speaker_registry import schemas
from speaker_registry.errors import ArtifactNotFound, ArtifactStale, SpeakerRegistryError
from speaker_registry.manifests import ManifestEntry
from speaker_registry.names import VoiceId, slug_of


def voice_id(document: SpeakerDocument) -> str:
    """Return the id of a live voice. A name that is deleted and registered again gets another id."""
    assert document.key is not None, "a live voice has a key"
    assert document.first_id is not None, "a live voice has a first version"
    return str(VoiceId(document.first_id, slug_of(document.key)))


def voice(profiles: Profiles, speaker: FoundSpeaker) -> schemas.Voice:
    document, default = speaker.document, speaker.document.default
    artifacts = _statuses(profiles, profiles.all_statuses(speaker, default))
    numbers = {version.vuid: version.number for version in document.versions}
    return schemas.Voice(
        id=voice_id(document),
        name=default.name,
        key=document.key or "",
        created_at=default.created_at,
        version=default.number,
        latest=document.newest.number,
        versions=len(document.versions),
        aliases={alias: numbers[one.vuid] for alias, one in document.aliases.items()},
        state=profiles.state(speaker, default),
        artifacts=artifacts,
        held_back=held_back(document, document.newest, profiles.required),
        description=document.about.description,
        labels=document.about.labels,
        pinned=document.about.pinned,
        promotion=document.about.promotion,
        untrained=any(artifact.untrained for artifact in artifacts),
    )


def alias(document: SpeakerDocument, name: str) -> schemas.VoiceAlias:
    """Render an alias of a live voice. Raises `AliasNotFound`."""
    pointed = document.resolve(name, lambda _: False)
    present = document.aliases[name]
    return schemas.VoiceAlias(
        voice=document.default.name,
        alias=name,
        version=pointed.number,
        by_hand=present.by_hand,
        moved=present.moved,
    )


def change(happened: Happened) -> schemas.VoiceChange:
    position, entry = happened.position, happened.what
    if isinstance(entry, Decision):
        return schemas.VoiceChange(
            revision=position.revision,
            at=entry.at,
            by=entry.by,
            did=entry.did,
            profile=position.profile,
            fingerprint=entry.fingerprint,
            former_fingerprint=entry.former_fingerprint,
        )
    return schemas.VoiceChange(
        revision=entry.revision,
        at=entry.at,
        by=entry.by,
        did=entry.did,
        version=entry.version,
        alias=entry.alias,
    )


def version(profiles: Profiles, speaker: FoundSpeaker, one: Version) -> schemas.VoiceVersion:
    clip = one.clip
    artifacts = _statuses(profiles, profiles.all_statuses(speaker, one))
    return schemas.VoiceVersion(
        id=one.id,
        voice_id=voice_id(speaker.document),
        voice=one.name,
        version=one.number,
        created_at=one.created_at,
        source=one.source,
        audio=schemas.AudioProperties(
            digest=f"sha256:{clip.sha256}",
            size=clip.size,
            mime_type=clip.mime_type,
            seconds=clip.seconds,
            sample_rate=clip.sample_rate,
            channels=clip.channels,
            url=f"{version_path(one)}/audio",
        )
        if clip
        else None,
        embedding_dim=one.embedding_width,
        ref_text=one.ref_text,
        consent=one.consent,
        description=one.description,
        artifacts=artifacts,
        state=profiles.state(speaker, one),
        held_back=held_back(speaker.document, one, profiles.required),
        untrained=any(artifact.untrained for artifact in artifacts),
    )


def registered_version(profiles: Profiles, registered: Registered) -> schemas.RegisteredVersion:
    shown = version(profiles, registered.speaker, registered.version)
    return schemas.RegisteredVersion(**dict(shown), created=registered.created, jobs=dict(registered.jobs))


def version_path(one: Version) -> str:
    return f"/v1/voices/{_segment(one.name)}/versions/{one.number}"


def _statuses(profiles: Profiles, found: Iterable[ProfileStatus]) -> list[schemas.ArtifactStatus]:
    return [_artifact_status(profiles, status) for status in found]


def _artifact_status(profiles: Profiles, status: ProfileStatus) -> schemas.ArtifactStatus:
    return schemas.ArtifactStatus(
        profile=status.profile.name,
        state=status.state,
        current=status.current if status.artifact else None,
        digest=status.artifact.digest if status.artifact else None,
        untrained=profiles.untrained(status),
        job_id=status.job_id,
        error=status.error,
        reason=status.reason,
    )


def descriptor(
    profiles: Profiles,
    speaker: FoundSpeaker,
    one: Version,
    status: ProfileStatus,
    wanted: Wanted = ANY,
) -> schemas.ArtifactDescriptor:
    record = None if wanted.current and not status.current else status.artifact
    return schemas.ArtifactDescriptor(
        voice=one.name,
        voice_id=voice_id(speaker.document),
        version=one.number,
        version_id=one.id,
        created_at=one.created_at,
        profile=status.profile.name,
        model_type=status.profile.model_type,
        state="ready" if record is not None else status.state_of_current,
        current=status.current if record is not None else None,
        ref_text=one.ref_text,
        audio_digest=f"sha256:{one.clip.sha256}" if one.clip else None,
        untrained=profiles.will_be_untrained(status) if record is None else record.untrained,
        job_id=status.job_id,
        error=status.error,
        reason=status.reason,
        **(_artifact_fields(speaker, one, status, record, wanted) if record is not None else {}),
    )


def resolved(
    voice: str, profile: str, found: FoundArtifact | SpeakerRegistryError
) -> schemas.ResolvedArtifact:
    """Render the version and the artifact that a reference stands for, or the error that says why there is
    none.
    """
    if isinstance(found, SpeakerRegistryError):
        return schemas.ResolvedArtifact(voice=voice, profile=profile, error=_fault(found))
    fault = found.fault
    return schemas.ResolvedArtifact(
        voice=voice,
        profile=profile,
        current=found.status.current if found.artifact else None,
        error=_fault(fault) if fault else None,
        **_version_and_file(found),
    )


def manifest_entry(found: FoundArtifact) -> ManifestEntry:
    return ManifestEntry(
        voice=found.version.name,
        voice_id=voice_id(found.speaker.document),
        source=found.version.source,
        ref_text=found.version.ref_text,
        pinned=found.speaker.document.about.pinned,
        **_version_and_file(found),
    )


def _version_and_file(found: FoundArtifact) -> dict[str, Any]:
    """Return the fields that describe a version and its artifact. The state is None if nothing makes the
    artifact.
    """
    artifact = found.artifact
    return {
        "version": found.version.number,
        "version_id": found.version.id,
        "created_at": found.version.created_at,
        "state": None if isinstance(found.fault, ArtifactNotFound | ArtifactStale) else found.status.state,
        "digest": artifact.record.digest if artifact else None,
        "size": artifact.record.size if artifact else None,
        "untrained": artifact.record.untrained if artifact else False,
    }


def _fault(error: SpeakerRegistryError) -> schemas.Fault:
    return schemas.Fault(code=error.code, message=error.message)


def _artifact_fields(
    speaker: FoundSpeaker, one: Version, status: ProfileStatus, record: ArtifactRecord, wanted: Wanted
) -> dict[str, Any]:
    base = f"{version_path(one)}/artifacts/{status.profile.name}/file"
    extractor = speaker.document.extractor(record)
    return {
        "mode": _mode(one, record),
        "digest": record.digest,
        "content_digest": record.content_digest,
        "size": record.size,
        "tensors": record.tensors,
        "fingerprint": record.fingerprint,
        "extractor": extractor,
        "custom_weights": Fingerprint(extractor).custom_weights,
        "url": base + (f"?fingerprint={wanted.fingerprint}" if wanted.fingerprint else ""),
        "immutable_url": f"/v1/blobs/{record.digest}",
    }


def _mode(one: Version, record: ArtifactRecord) -> schemas.Mode | None:
    if "speaker_embedding" not in record.tensors:
        return None
    return "icl" if one.ref_text and "ref_code" in record.tensors else "xvec"


def _segment(name: str) -> str:
    return quote(name, safe="")


LOST = "lost with Redis"
"""The `reason` of a job whose record Redis lost and whose artifact is no longer being made."""


def job(profiles: Profiles, record: JobRecord) -> schemas.Job:
    encoder = profiles.encoder(record.profile)
    if encoder is not None and encoder.fingerprint != record.fingerprint:
        encoder = None
    return schemas.Job(
        id=record.id,
        state=record.state,
        voice=record.name,
        version=record.number,
        version_id=record.given_id or record.vuid,
        profile=record.profile,
        fingerprint=record.fingerprint or None,
        untrained=encoder.untrained if encoder else None,
        custom_weights=encoder.custom_weights if encoder else None,
        attempt=record.attempt,
        max_attempts=record.max_attempts,
        progress=schemas.JobProgress(stage=record.stage, done=record.stages_done, total=len(STAGES)),
        queue=record.queue,
        created_at=record.created_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        worker=record.worker,
        error=schemas.JobError(**record.error) if record.error else None,
        reason=_reason_of_job(profiles, record),
        retry_after=None if record.finished else 1.0,
    )


def _reason_of_job(profiles: Profiles, record: JobRecord) -> str | None:
    """Return why a queued job does not start (no worker takes it, or it was lost), or None. May ask Redis.

    Workers with the profile's current encoder take live jobs. Those of a campaign are for its encoder alone.
    """
    if record.lost:
        return LOST
    if record.state != "queued":
        return None
    if is_preparation(record.queue):
        return None if profiles.has_worker(record.profile, record.fingerprint) else NO_WORKER
    return profiles.waiting_reason(record.profile)


def uploaded_voice(profiles: Profiles, speaker: FoundSpeaker) -> dict[str, Any]:
    """Return one entry of vLLM-Omni's `uploaded_voices`: its fields in its format, and ours after them."""
    one = speaker.document.default
    wanted = [profiles.explained(status) for status in profiles.wanted_statuses(speaker, one)]
    entry: dict[str, Any] = {
        "name": one.name,
        "consent": one.consent,
        "created_at": one.created_at,
        "file_size": one.clip.size if one.clip else _given_size(one),
        "mime_type": one.clip.mime_type if one.clip else "application/vnd.safetensors",
        "embedding_source": "audio" if one.clip else "direct",
        "embedding_dim": one.embedding_width,
    }
    entry.update(_if_set(ref_text=one.ref_text, speaker_description=one.description))
    entry.update(
        id=voice_id(speaker.document),
        version=one.number,
        cache_status=worst(wanted),
        current=not any(status.of_former for status in wanted),
    )
    entry.update(_if_set(reason=_reason(wanted), untrained=_untrained(profiles, wanted)))
    return entry


def _given_size(one: Version) -> int:
    """Return the size of the first artifact that a version was registered with; 0 if there is none."""
    return next((one.artifacts[name][0].size for name in given_profiles(one)), 0)


def _untrained(profiles: Profiles, found: Iterable[ProfileStatus]) -> bool | None:
    """Return True if an artifact was made with random weights or will be, and None for a trained voice."""
    return any(map(profiles.untrained, found)) or None


def _reason(statuses: Iterable[ProfileStatus]) -> str | None:
    return next((status.reason for status in statuses if status.reason), None)


def _if_set(**values: str | bool | None) -> dict[str, str | bool]:
    return {name: value for name, value in values.items() if value is not None}


def uploaded(profiles: Profiles, speaker: FoundSpeaker, one: Version) -> dict[str, Any]:
    """Return `voice` of vLLM-Omni's answer to an upload: its fields in its format, and ours after them."""
    entry: dict[str, Any] = {"name": one.name, "consent": one.consent, "created_at": one.created_at}
    if one.clip is not None:
        entry.update(mime_type=one.clip.mime_type, file_size=one.clip.size)
    else:
        entry.update(embedding_source="direct", embedding_dim=one.embedding_width)
    entry.update(_if_set(ref_text=one.ref_text, speaker_description=one.description))
    wanted = [profiles.explained(status) for status in profiles.wanted_statuses(speaker, one)]
    entry.update(id=voice_id(speaker.document), version=one.number, cache_status=worst(wanted))
    held = held_back(speaker.document, one, profiles.required)
    entry.update(_if_set(reason=_reason(wanted), held_back=held, untrained=_untrained(profiles, wanted)))
    return entry
