"""Renders speakers as voices: turns records into the answers of `speaker_registry.schemas`. No decisions."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from services.registry_api.campaigns.control import Campaigns, ShownCampaign
from services.registry_api.keys.api_keys import ApiKey, Token
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.operations.artifacts import ANY, FoundVersion, Wanted
from services.registry_api.operations.registration import Registered
from services.shared.index.jobs import JobRecord
from services.shared.index.reading import IndexedSpeaker
from services.shared.model.domain import ArtifactRecord, SpeakerVersion
from services.shared.model.encoders import differences
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.profile_document import ProfileDocument
from services.shared.registry.parts import RegistryParts
from services.shared.registry.promotion import held_back
from services.shared.registry.status import ProfileStatus, Statuses, waiting_reason, worst
from services.shared.view.workers import FailedProof
from speaker_registry import schemas
from speaker_registry.engine import Profile
from speaker_registry.errors import ArtifactNotFound, ArtifactStale, SpeakerRegistryError, Unavailable
from speaker_registry.manifests import ManifestEntry
from speaker_registry.names import DEFAULT, VoiceId, slug_of


def voice_id(indexed: IndexedSpeaker) -> str:
    """Return the id of a voice. A name that is deleted and registered again gets another id."""
    first = indexed.speaker.versions[0]
    return str(VoiceId(first.vuid, slug_of(first.record.key)))


def voice(statuses: Statuses, indexed: IndexedSpeaker) -> schemas.Voice:
    speaker = indexed.speaker
    artifacts = _statuses(statuses, statuses.of_version(indexed, speaker.default))
    aliases = {alias: version.number for alias, version in speaker.aliases.items()}
    return schemas.Voice(
        id=voice_id(indexed),
        name=speaker.default.record.name,
        key=speaker.default.record.key,
        created_at=speaker.default.record.created_at,
        version=speaker.default.number,
        latest=speaker.newest.number,
        versions=indexed.version_count,
        aliases={DEFAULT: speaker.default.number, **aliases},
        state=statuses.state(indexed, speaker.default),
        artifacts=artifacts,
        held_back=held_back(statuses, indexed, speaker.newest),
        untrained=any(artifact.untrained for artifact in artifacts),
    )


def version(statuses: Statuses, indexed: IndexedSpeaker, one: SpeakerVersion) -> schemas.VoiceVersion:
    record = one.record
    clip = record.clip
    artifacts = _statuses(statuses, statuses.of_version(indexed, one))
    return schemas.VoiceVersion(
        id=one.vuid,
        voice_id=voice_id(indexed),
        voice=record.name,
        version=one.number,
        created_at=record.created_at,
        source=record.source,
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
        embedding_dim=record.embedding_width,
        ref_text=record.ref_text,
        consent=record.consent,
        description=record.description,
        artifacts=artifacts,
        state=statuses.state(indexed, one),
        held_back=held_back(statuses, indexed, one),
        untrained=any(artifact.untrained for artifact in artifacts),
    )


def registered_version(statuses: Statuses, registered: Registered) -> schemas.RegisteredVersion:
    shown = version(statuses, registered.indexed, registered.version)
    return schemas.RegisteredVersion(**dict(shown), created=registered.created, jobs=dict(registered.jobs))


def version_path(one: SpeakerVersion) -> str:
    return f"/v1/voices/{_segment(one.record.name)}/versions/{one.number}"


def _statuses(statuses: Statuses, found: Iterable[ProfileStatus]) -> list[schemas.ArtifactStatus]:
    return [_artifact_status(statuses, status) for status in found]


def _artifact_status(statuses: Statuses, status: ProfileStatus) -> schemas.ArtifactStatus:
    return schemas.ArtifactStatus(
        profile=status.profile.name,
        state=status.state,
        current=status.current if status.artifact else None,
        digest=status.artifact.digest if status.artifact else None,
        untrained=statuses.untrained(status),
        job_id=status.job_id,
        error=status.error,
        reason=status.reason,
    )


def descriptor(
    statuses: Statuses,
    indexed: IndexedSpeaker,
    one: SpeakerVersion,
    status: ProfileStatus,
    wanted: Wanted = ANY,
) -> schemas.ArtifactDescriptor:
    record = None if wanted.current and not status.current else status.artifact
    return schemas.ArtifactDescriptor(
        voice=one.record.name,
        voice_id=voice_id(indexed),
        version=one.number,
        version_id=one.vuid,
        created_at=one.record.created_at,
        profile=status.profile.name,
        model_type=status.profile.model_type,
        state="ready" if record is not None else status.state_of_current,
        current=status.current if record is not None else None,
        ref_text=one.record.ref_text,
        audio_digest=f"sha256:{one.record.clip.sha256}" if one.record.clip else None,
        untrained=statuses.will_be_untrained(status) if record is None else record.untrained,
        job_id=status.job_id,
        error=status.error,
        reason=status.reason,
        **(_artifact_fields(one, status, record, wanted) if record is not None else {}),
    )


def resolved(
    voice: str, profile: str, found: FoundVersion | SpeakerRegistryError
) -> schemas.ResolvedArtifact:
    """Show what a reference stands for. An error says why it stands for nothing."""
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


def manifest_entry(found: FoundVersion) -> ManifestEntry:
    record = found.version.record
    return ManifestEntry(
        voice=record.name,
        voice_id=voice_id(found.indexed),
        source=record.source,
        ref_text=record.ref_text,
        **_version_and_file(found),
    )


def _version_and_file(found: FoundVersion) -> dict[str, Any]:
    """Return a version and its artifact. The state is None if nothing makes the artifact."""
    artifact = found.artifact
    return {
        "version": found.version.number,
        "version_id": found.version.vuid,
        "created_at": found.version.record.created_at,
        "state": None if isinstance(found.fault, ArtifactNotFound | ArtifactStale) else found.status.state,
        "digest": artifact.record.digest if artifact else None,
        "size": artifact.record.size if artifact else None,
        "untrained": artifact.record.untrained if artifact else False,
    }


def _fault(error: SpeakerRegistryError) -> schemas.Fault:
    return schemas.Fault(code=error.code, message=error.message)


def _artifact_fields(
    one: SpeakerVersion, status: ProfileStatus, record: ArtifactRecord, wanted: Wanted
) -> dict[str, Any]:
    base = f"{version_path(one)}/artifacts/{status.profile.name}/file"
    return {
        "mode": _mode(one, record),
        "digest": record.digest,
        "content_digest": record.content_digest,
        "size": record.size,
        "tensors": record.tensors,
        "fingerprint": record.fingerprint,
        "extractor": record.extractor,
        "custom_weights": Fingerprint(record.extractor).custom_weights,
        "url": base + (f"?fingerprint={wanted.fingerprint}" if wanted.fingerprint else ""),
        "immutable_url": f"/v1/blobs/{record.digest}",
    }


def _mode(one: SpeakerVersion, record: ArtifactRecord) -> schemas.Mode | None:
    if "speaker_embedding" not in record.tensors:
        return None
    return "icl" if one.record.ref_text and "ref_code" in record.tensors else "xvec"


def _segment(name: str) -> str:
    return quote(name, safe="")


LOST = "lost with Redis"
"""The reason of a job whose record Redis lost, and whose artifact nothing makes any more."""


def job(statuses: Statuses, record: JobRecord) -> schemas.Job:
    encoder = statuses.encoder(record.profile)
    if encoder is not None and encoder.fingerprint != record.fingerprint:
        encoder = None
    return schemas.Job(
        id=record.id,
        state=record.state,
        voice=record.name,
        version=record.number,
        version_id=record.vuid,
        profile=record.profile,
        fingerprint=record.fingerprint or None,
        untrained=encoder.untrained if encoder else None,
        custom_weights=encoder.custom_weights if encoder else None,
        attempt=record.attempt,
        max_attempts=record.max_attempts,
        progress=schemas.JobProgress(stage=record.stage, done=record.done, total=record.total),
        queue=record.queue,
        created_at=record.created_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        worker=record.worker,
        error=schemas.JobError(**record.error) if record.error else None,
        reason=_reason_of_job(statuses, record),
        retry_after=None if record.finished else 1.0,
    )


def _reason_of_job(statuses: Statuses, record: JobRecord) -> str | None:
    """Say why a queued job waits, if no worker serves its profile, or that it was lost. May ask Redis."""
    if record.lost:
        return LOST
    if record.state != "queued" or statuses.is_served(record.profile):
        return None
    return waiting_reason(record.profile)


def profiles(parts: RegistryParts, campaigns: Campaigns, shown: Sequence[Profile]) -> list[schemas.Profile]:
    """Render profiles with their encoders and workers."""
    names = [one.name for one in shown]
    workers, failed_proofs = parts.workers.of(names), parts.workers.failed(names)
    return [
        _profile(
            one,
            required=one.name in parts.catalogue.required,
            document=(document := parts.profile_records.read(one.name)),
            workers=workers[one.name],
            candidates=_candidates(campaigns, one.name, document, workers[one.name]),
            failed_proofs=failed_proofs[one.name],
        )
        for one in shown
    ]


def _candidates(
    campaigns: Campaigns, profile: str, document: ProfileDocument, workers: Mapping[str, int]
) -> list[schemas.CandidateEncoder]:
    """Render the encoders that live workers have and that are not the current one."""
    current = document.current
    if current is None or not workers.keys() - {current.fingerprint}:
        return []
    coverage = dict[str, float]()
    with suppress(Unavailable):  # the next answer tells more
        coverage = campaigns.coverage(profile)
    others = [(document.encoder(one), count) for one, count in sorted(workers.items())]
    return [
        schemas.CandidateEncoder(
            fingerprint=encoder.fingerprint,
            untrained=encoder.untrained,
            custom_weights=encoder.custom_weights,
            workers=count,
            differs=differences(current.extractor, encoder.extractor),
            coverage=coverage.get(encoder.fingerprint),
        )
        for encoder, count in others
        if encoder is not None and encoder != current
    ]


def campaign(found: ShownCampaign) -> schemas.Campaign:
    """Render a campaign."""
    one, progress = found.campaign, found.progress
    return schemas.Campaign(
        id=one.id,
        profile=one.profile,
        fingerprint=one.fingerprint,
        state=one.state,
        rate=one.rate,
        promotes=one.promotes,
        progress=schemas.CampaignProgress(
            voices=progress.voices,
            ready=progress.ready,
            failed=progress.failed,
            skipped=progress.skipped,
            under_way=len(progress.under_way),
        ),
        coverage=progress.coverage,
        per_second=progress.per_second if one.state == "running" else None,
        eta_seconds=progress.eta_seconds if one.state == "running" else None,
        sample=schemas.CampaignSample(
            wanted=one.sample,
            compared=progress.compared,
            tensors={
                name: schemas.TensorDistance(
                    measure=seen.measure, mean=seen.total / seen.voices, lowest=seen.lowest
                )
                for name, seen in progress.distances.items()
            },
        ),
        reason=found.reason,
        created_at=one.created_at,
        changed_at=one.changed_at,
    )


def _profile(
    known_profile: Profile,
    *,
    required: bool,
    document: ProfileDocument,
    workers: Mapping[str, int],
    candidates: list[schemas.CandidateEncoder],
    failed_proofs: Iterable[FailedProof],
) -> schemas.Profile:
    current = document.current
    return schemas.Profile(
        id=known_profile.name,
        model_type=known_profile.model_type,
        description=known_profile.description,
        required=required,
        tensors=dict(known_profile.tensors),
        sample_rate=known_profile.sample_rate,
        frame_rate=known_profile.frame_rate,
        ref_text_required=known_profile.ref_text_required,
        model=known_profile.weights.repo,
        licence=known_profile.weights.licence,
        licence_notes=known_profile.weights.notes,
        not_extractable=known_profile.not_extractable,
        fingerprint=current.fingerprint if current else None,
        extractor=current.extractor if current else {},
        untrained=current.untrained if current else False,
        custom_weights=current.custom_weights if current else False,
        workers=workers.get(current.fingerprint, 0) if current else 0,
        former=list(document.former_fingerprints),
        candidates=candidates,
        failed_proofs=[
            schemas.FailedProof(worker=one.worker, device=one.device, reason=one.reason)
            for one in failed_proofs
        ],
    )


def uploaded_voice(statuses: Statuses, indexed: IndexedSpeaker) -> dict[str, Any]:
    """Return one entry of vLLM-Omni's `uploaded_voices`: its fields in its format, and ours after them."""
    one = indexed.speaker.default
    record = one.record
    wanted = [statuses.explained(status) for status in statuses.of_wanted(indexed, one)]
    entry: dict[str, Any] = {
        "name": record.name,
        "consent": record.consent,
        "created_at": record.created_at,
        "file_size": record.clip.size if record.clip else sum(given.size for given in record.given[:1]),
        "mime_type": record.clip.mime_type if record.clip else "application/vnd.safetensors",
        "embedding_source": "audio" if record.clip else "direct",
        "embedding_dim": record.embedding_width,
    }
    entry.update(_if_set(ref_text=record.ref_text, speaker_description=record.description))
    entry.update(
        id=voice_id(indexed),
        version=one.number,
        cache_status=worst(wanted),
        current=not any(status.of_former for status in wanted),
    )
    entry.update(_if_set(reason=_reason(wanted), untrained=_untrained(statuses, wanted)))
    return entry


def _untrained(statuses: Statuses, found: Iterable[ProfileStatus]) -> bool | None:
    """Return True if an artifact was made with random weights or will be, and None for a trained voice."""
    return any(map(statuses.untrained, found)) or None


def _reason(statuses: Iterable[ProfileStatus]) -> str | None:
    return next((status.reason for status in statuses if status.reason), None)


def _if_set(**values: str | bool | None) -> dict[str, str | bool]:
    return {name: value for name, value in values.items() if value is not None}


def uploaded(statuses: Statuses, indexed: IndexedSpeaker, one: SpeakerVersion) -> dict[str, Any]:
    """Return `voice` of vLLM-Omni's answer to an upload: its fields in its format, and ours after them."""
    record = one.record
    entry: dict[str, Any] = {"name": record.name, "consent": record.consent, "created_at": record.created_at}
    if record.clip is not None:
        entry.update(mime_type=record.clip.mime_type, file_size=record.clip.size)
    else:
        entry.update(embedding_source="direct", embedding_dim=record.embedding_width)
    entry.update(_if_set(ref_text=record.ref_text, speaker_description=record.description))
    wanted = [statuses.explained(status) for status in statuses.of_wanted(indexed, one)]
    entry.update(id=voice_id(indexed), version=one.number, cache_status=worst(wanted))
    entry.update(_if_set(reason=_reason(wanted), held_back=held_back(statuses, indexed, one)))
    entry.update(_if_set(untrained=_untrained(statuses, wanted)))
    return entry


def key(keys: HeldKeys, one: ApiKey, used: Mapping[str, int]) -> schemas.ApiKey:
    """Render an API key.

    Args:
        used: key id -> when the key was last used.
    """
    return schemas.ApiKey(**_key_fields(keys, one, used))


def new_key(keys: HeldKeys, one: ApiKey, token: Token) -> schemas.NewApiKey:
    return schemas.NewApiKey(**_key_fields(keys, one, {}), key=str(token))


def _key_fields(keys: HeldKeys, one: ApiKey, used: Mapping[str, int]) -> dict[str, Any]:
    record = one.record
    return {
        "id": record.id,
        "name": record.name,
        "namespace": record.namespace,
        "scopes": list(record.scopes),
        "created_at": record.created_at,
        "created_by": record.created_by,
        "expires_at": one.ends_at,
        "state": keys.state(one),
        "last_used_at": used.get(record.id),
        "requests_per_minute": record.requests_per_minute,
        "uploads_per_minute": record.uploads_per_minute,
    }
