"""Deletes speakers. Their live versions become an ended life, whose bytes stay for the grace period.

This module knows no HTTP.
"""

from collections.abc import Iterable
from contextlib import suppress

import structlog

from services.registry_api.operations.live_voice import Check, change_live_voice
from services.shared.model.changes import deleted, without_version
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.registry.lookup import expect, locate, not_found
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.errors import Unavailable, VoiceDamaged
from speaker_registry.names import SpeakerName

log = structlog.get_logger(__name__)

YOUNG_SECONDS = 30 * 60.0
"""A generation younger than this may lack announcements, so a delete that finds nothing fences the name."""


def delete(
    speakers: Speakers,
    jobs: Jobs,
    namespace: str,
    name: SpeakerName,
    *,
    by: str,
    check: Check | None = None,
) -> FoundSpeaker:
    """Delete a voice with all its versions and jobs, at once. Returns the speaker as it was before.

    If there is no such voice, but an upload of the name may be under way, that upload will fail.

    Args:
        name: the voice's name or its id, as in `lookup.find`.
        check: called with the live document, and raises if the voice must not be deleted.

    Raises:
        VoiceNotFound, and any error of `check`.
        Unavailable: the voice was not deleted, or it is not known whether it was.
    """
    until = speakers.deadline()
    seen = _located(speakers, namespace, name)
    before = seen.document
    with speakers.changing(seen.id, by=by, until=until) as change:
        others = speakers.agenda.announced(seen.id).keys() - {change.token}
        may_come = bool(others) or speakers.generation.is_younger_than(YOUNG_SECONDS)

        def decide(document: SpeakerDocument) -> SpeakerDocument:
            nonlocal before
            before = document
            if document.live:
                expect(document, name, seen.id)
            if document.live and check is not None:
                check(document)
            is_needed = document.live or may_come
            return deleted(document, now=speakers.now()) if is_needed else document

        change.commit(decide, did="delete", takes_away=True, mends=True)
    if not before.live and not change.mended:
        raise not_found(name)
    _end_jobs(jobs, seen.id, seen.open_jobs)
    log.info("speaker.deleted", speaker=str(seen.id), versions=len(before.versions))
    return FoundSpeaker(before, seen.open_jobs, id=seen.id)


def delete_version(
    speakers: Speakers,
    jobs: Jobs,
    namespace: str,
    name: SpeakerName,
    number: int,
    *,
    by: str,
    check: Check | None = None,
) -> None:
    """Delete one version of a voice with its jobs, at once. Deleting the last version deletes the voice.

    Args:
        check: as in `change_live_voice`.

    Raises:
        VoiceNotFound, VersionNotFound, Unavailable, and any error of `check`.
        Conflict: an alias points to the version, and it is not the last.
    """
    vuid = ""

    def decide(document: SpeakerDocument) -> SpeakerDocument:
        nonlocal vuid
        vuid = document.numbered(number).vuid
        return without_version(document, vuid, now=speakers.now())

    left = change_live_voice(
        speakers, namespace, name, decide, did="delete_version", by=by, check=check, takes_away=True
    )
    _end_jobs(jobs, left.id, [job for job in left.open_jobs if job.vuid == vuid])
    log.info("version.deleted", speaker=str(left.id), version=number)


def _end_jobs(jobs: Jobs, speaker_id: SpeakerId, ended: Iterable[OpenJob]) -> None:
    for job in ended:
        with suppress(Unavailable):  # its worker will find that the version is gone
            jobs.end(speaker_id, job, "superseded")


def _located(speakers: Speakers, namespace: str, name: SpeakerName) -> FoundSpeaker:
    """Return the speaker to delete. A speaker whose document is damaged is found by its name."""
    try:
        return locate(speakers, namespace, name)
    except VoiceDamaged:
        return FoundSpeaker(SpeakerDocument(), id=SpeakerId.of(namespace, name))
