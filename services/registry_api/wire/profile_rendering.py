"""Renders profiles with their encoders, and campaigns: turns records into the answers of `schemas`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from services.registry_api.campaigns.campaign import FailedVoice, Progress
from services.registry_api.campaigns.control import Campaigns, ShownCampaign
from services.registry_api.dependencies import Services
from services.shared.model.decisions import Decision
from services.shared.model.encoders import Encoder, differences
from services.shared.model.profile_document import ProfileDocument
from services.shared.view.workers import FailedProof, LiveWorker
from speaker_registry import schemas
from speaker_registry.engine import Profile
from speaker_registry.errors import Unavailable


def profiles(services: Services, shown: Sequence[Profile]) -> list[schemas.Profile]:
    """Render profiles with their encoders and workers."""
    names, records = [one.name for one in shown], services.profile_records
    live, failed_proofs = services.workers.live(names), services.workers.failed(names)
    alive = {name: Counter(one.fingerprint for one in found) for name, found in live.items()}
    return [
        _profile(
            one,
            required=services.profiles.is_required(one.name),
            announced=(announced := records.read(one.name)),
            problem=records.problem(one.name),
            workers=alive[one.name],
            live=live[one.name],
            candidates=_candidates(announced, services.campaigns, one.name, alive[one.name]),
            failed_proofs=failed_proofs[one.name],
        )
        for one in shown
    ]


def _candidates(
    announced: ProfileDocument, campaigns: Campaigns, profile: str, workers: Mapping[str, int]
) -> list[schemas.CandidateEncoder]:
    """Render the encoders that live workers have and that are not the current one, and the candidate of the
    newest campaign even without workers.
    """
    campaigned = {one.fingerprint for one in announced.campaigns[-1:]}
    prepared = campaigned & {one.fingerprint for one in announced.candidates}
    fingerprints = (workers.keys() | prepared) - {announced.fingerprint}
    if announced.current is None or not fingerprints:
        return []
    coverage = dict[str, float]()
    with suppress(Unavailable):  # the next answer will have them
        coverage = campaigns.coverage(profile)
    return [
        _candidate(announced.current, encoder, workers.get(fingerprint, 0), coverage.get(fingerprint))
        for fingerprint in sorted(fingerprints)
        if (encoder := announced.encoder(fingerprint))
    ]


def _candidate(
    current: Encoder, encoder: Encoder, workers: int, coverage: float | None
) -> schemas.CandidateEncoder:
    return schemas.CandidateEncoder(
        fingerprint=encoder.fingerprint,
        untrained=encoder.untrained,
        custom_weights=encoder.custom_weights,
        workers=workers,
        differs=differences(current.extractor, encoder.extractor),
        coverage=coverage,
    )


def decision(one: Decision) -> schemas.ProfileChange:
    """Render a decision that made an encoder the current one."""
    return schemas.ProfileChange(
        revision=one.revision,
        at=one.at,
        by=one.by,
        did=one.did,
        fingerprint=one.fingerprint,
        former_fingerprint=one.former_fingerprint or None,
        campaign_id=one.campaign,
    )


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
        failures=[_failure(failed) for failed in progress.named],
        coverage=progress.coverage,
        per_second=progress.per_second if one.state == "running" else None,
        eta_seconds=progress.eta_seconds if one.state == "running" else None,
        sample=schemas.CampaignSample(
            wanted=one.sample, compared=progress.compared, tensors=_distances(progress)
        ),
        reason=found.reason,
        created_at=one.created_at,
        changed_at=one.changed_at,
    )


def _failure(failed: FailedVoice) -> schemas.CampaignFailure:
    return schemas.CampaignFailure(
        namespace=failed.namespace,
        voice=failed.voice,
        version=failed.version,
        code=failed.code,
        message=failed.message,
        retryable=failed.retryable,
    )


def _distances(progress: Progress) -> dict[str, schemas.TensorDistance]:
    return {
        name: schemas.TensorDistance(measure=seen.measure, mean=seen.total / seen.voices, lowest=seen.lowest)
        for name, seen in progress.distances.items()
    }


def _profile(
    known_profile: Profile,
    *,
    required: bool,
    announced: ProfileDocument,
    problem: str | None,
    workers: Mapping[str, int],
    live: Iterable[LiveWorker],
    candidates: list[schemas.CandidateEncoder],
    failed_proofs: Iterable[FailedProof],
) -> schemas.Profile:
    current = announced.current
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
        problem=problem,
        extractor=current.extractor if current else {},
        untrained=current.untrained if current else False,
        custom_weights=current.custom_weights if current else False,
        workers=workers.get(announced.fingerprint, 0),
        live_workers=[_live_worker(known_profile.name, one) for one in live],
        former=list(announced.former_fingerprints),
        candidates=candidates,
        failed_proofs=[
            schemas.FailedProof(worker=one.worker, device=one.device, reason=one.reason)
            for one in failed_proofs
        ],
    )


def _live_worker(profile: str, live: LiveWorker) -> schemas.LiveWorker:
    report = live.report
    return schemas.LiveWorker(
        worker=live.name,
        fingerprint=live.fingerprint,
        device=report.device if report else None,
        proven_at=report.proven_at.get(profile) if report else None,
        extracted_last_hour=report.extracted_last_hour.get(profile, 0) if report else None,
    )
