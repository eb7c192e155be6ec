"""Settles one speaker: brings its copy in the view up to date, fences lost writes, and starts missing
extractions.

It finds everything that a process may leave undone when it dies: a commit that was not applied to the view,
an announced write whose outcome is unknown, a job that no worker will run, a version that lacks an artifact.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from services.shared.model.artifacts import without_ahead, without_old_artifacts
from services.shared.model.document import SpeakerDocument
from services.shared.model.promotion import promoted
from services.shared.model.records import Version
from services.shared.model.speaker import OpenJob, Speaker, SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.registry.extract import extract_missing
from services.shared.registry.give_up import give_up_abandoned
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from services.shared.telemetry.metrics import REPAIRS
from services.shared.view.agenda import ANNOUNCED_SECONDS
from speaker_registry.errors import JobNotFound

log = structlog.get_logger(__name__)

BY = "housekeeping"
"""The author of the changes that housekeeping makes."""
AGAIN_SECONDS = 15.0
"""The time after which a speaker is checked again while one of its jobs or writes is under way."""


def settle(speakers: Speakers, jobs: Jobs, profiles: Profiles, speaker_id: SpeakerId) -> float | None:
    """Finish or start everything that a speaker needs. Returns the number of seconds until the next check, or
    None if nothing is left to do.

    Raises `VoiceDamaged`, `VoiceUnreadable` or `Unavailable`.
    """
    speakers.refresh(speaker_id)
    waiting = _fence(speakers, speaker_id)
    promote(speakers, profiles, speaker_id)
    speaker = speakers.read(speaker_id)
    for job in speaker.open_jobs:
        _check_job(speakers, jobs, profiles, speaker, job)
    speaker = speakers.read(speaker_id)
    for version in speaker.document.versions:
        if opened := extract_missing(jobs, profiles, speaker, version):
            _report(speaker, version.vuid, opened)
    under_way = waiting or bool(speakers.read(speaker_id).open_jobs)
    return AGAIN_SECONDS if under_way else None


def checker(profiles: Profiles) -> Callable[[SpeakerDocument], bool]:
    """Return a function that says whether `settle` would change a document or open a job if no job was open.

    It knows the profiles as they are now. A document with an artifact of a later encoder may be checked in
    vain.
    """
    settled = _settling(profiles)
    return lambda one: settled(one) is not one or _lacks_artifact(profiles, Speaker(one))


def _lacks_artifact(profiles: Profiles, speaker: Speaker) -> bool:
    """Return whether an artifact is missing and must be made."""
    return any(
        status.state_of_current == "pending" and not status.unsupported
        for version in speaker.document.versions
        for status in profiles.wanted_statuses(speaker, version)
    )


def promote(speakers: Speakers, profiles: Profiles, speaker_id: SpeakerId) -> SpeakerDocument:
    """Move `default` if a change of the required profiles allows it, serve artifacts that were made ahead of
    a promotion once the encoder is promoted, and drop artifacts of old encoders.
    """

    def decide(document: SpeakerDocument) -> SpeakerDocument:
        return _settling(profiles)(document)

    document = speakers.read(speaker_id).document
    if decide(document) is document:
        return document
    return speakers.change(speaker_id, decide, by=BY, did="promote")


def _settling(profiles: Profiles) -> Callable[[SpeakerDocument], SpeakerDocument]:
    """Return the change that updates a document to the current profiles.

    Call this after the document was read, so that every encoder that made one of its artifacts is known.
    """
    current, kept, required = profiles.current_fingerprints(), profiles.kept_fingerprints(), profiles.required

    def settled(document: SpeakerDocument) -> SpeakerDocument:
        return promoted(without_old_artifacts(without_ahead(document, current), kept), required)

    return settled


def _report(speaker: FoundSpeaker, vuid: str, opened: Mapping[str, str]) -> None:
    """Log the extractions that this module started."""
    known = {job.job_id for job in speaker.open_jobs}
    for profile, job_id in opened.items():
        if job_id not in known:
            log.info("extraction.resumed", speaker=str(speaker.id), vuid=vuid, profile=profile)
            REPAIRS.labels("extraction_resumed").inc()


def _fence(speakers: Speakers, speaker_id: SpeakerId) -> bool:
    """Make sure that writes whose outcome is unknown can no longer succeed. Returns whether newer announced
    writes may still succeed.

    The change replaces the document, so the condition of any swap that is still under way fails.
    """
    announced = speakers.agenda.announced(speaker_id)
    unknown = [token for token, age in announced.items() if age > ANNOUNCED_SECONDS]
    if unknown:
        speakers.change(speaker_id, lambda document: document.having(), by=BY, did="fence")
        log.warning("write.fenced", speaker=str(speaker_id), writes=len(unknown))
    for token in unknown:
        speakers.agenda.withdraw(speaker_id, token)
    return len(announced) > len(unknown)


def _check_job(
    speakers: Speakers, jobs: Jobs, profiles: Profiles, speaker: FoundSpeaker, job: OpenJob
) -> None:
    """Keep an open job if a worker runs it or will run it. Otherwise end it, or replace it."""
    version = speaker.document.version(job.vuid)
    if version is None:
        jobs.end(speaker.id, job, "superseded")
        jobs.remove(job)
        return
    state = jobs.keep(speaker.id, job)
    if state == "failed":
        _give_up(speakers, jobs, profiles, speaker.id, job)
    elif state == "gone":
        _replace(jobs, profiles, speaker, version, job)


def _replace(jobs: Jobs, profiles: Profiles, speaker: FoundSpeaker, version: Version, job: OpenJob) -> None:
    """End a job that no worker will run. If it was to make an existing artifact again, open another job for
    that. For all other jobs, `settle` opens a new one if the artifact is missing.
    """
    forced = False
    outcome = None
    with suppress(JobNotFound):
        record = jobs.record(speaker.id.namespace, job.job_id)
        forced = record.forced
        outcome = version.outcome(job.profile, record.fingerprint, record.build)
    ended = jobs.end(speaker.id, job, outcome) if outcome else jobs.replace(speaker.id, job)
    REPAIRS.labels("job_closed" if outcome or not ended else "job_lost").inc()
    if outcome or not ended:
        return
    log.warning("job.lost", job_id=job.job_id, speaker=str(speaker.id))
    if forced or job.mends:
        fingerprint = profiles.fingerprint(job.profile)
        jobs.open(speaker.id, version, job.profile, fingerprint, forced=forced, mends=job.mends)


def _give_up(speakers: Speakers, jobs: Jobs, profiles: Profiles, speaker_id: SpeakerId, job: OpenJob) -> None:
    """Record the failure of a job that the queue gave up."""
    with suppress(JobNotFound):
        record = jobs.record(speaker_id.namespace, job.job_id)
        give_up_abandoned(speakers, jobs, profiles, speaker_id, job, record=record)
        REPAIRS.labels("job_given_up").inc()
