"""Restores a deleted voice within the grace period. This module knows no HTTP."""

from contextlib import suppress

import structlog

from services.registry_api.operations.live_voice import Check
from services.registry_api.operations.register import Limits
from services.shared.model.changes import undeleted
from services.shared.model.document import SpeakerDocument
from services.shared.queue.jobs import Jobs
from services.shared.registry.extract import extract_missing
from services.shared.registry.lookup import expect_deleted, locate_deleted
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.errors import QuotaExceeded, Unavailable
from speaker_registry.names import SpeakerName

log = structlog.get_logger(__name__)


def undelete(
    speakers: Speakers,
    jobs: Jobs,
    profiles: Profiles,
    namespace: str,
    name: SpeakerName,
    *,
    limits: Limits,
    grace_seconds: float,
    by: str,
    check: Check | None = None,
) -> FoundSpeaker:
    """Restore the voice that was deleted last under a name, and start the extractions that its versions lack.

    Args:
        name: the voice's name or its id.
        grace_seconds: a voice that was deleted longer ago than this stays deleted, even if its bytes still
            exist.
        check: called with the newest document if it holds a voice that can be restored, and raises if that
            voice must not be restored.

    Raises:
        Any error of `check`.
        VoiceExists: the voice was restored already, or the name registered again.
        VoiceNotFound: nothing is left to restore, or the id is not that of the voice that was deleted last.
        QuotaExceeded: the namespace has no room for it.
        Unavailable: the voice was not restored, or it is not known whether it was.
    """
    until = speakers.deadline()
    speaker_id = locate_deleted(speakers, namespace, name).id
    with (
        speakers.changing(speaker_id, by=by, until=until) as change,
        speakers.reserving(speaker_id, change.document) as used,
    ):

        def decide(document: SpeakerDocument) -> SpeakerDocument:
            deleted_since = speakers.now() - round(grace_seconds)
            expect_deleted(document, name, speaker_id, deleted_since=deleted_since)
            after = undeleted(document)
            if check is not None:
                check(document)
            if not limits.have_room(used, after.counts):
                raise QuotaExceeded(
                    "The namespace has no room for this voice any more, see GET /v1/quota. Delete another "
                    "one first."
                )
            return after

        document = change.commit(decide, did="undelete")
    log.info("speaker.undeleted", speaker=str(speaker_id), versions=len(document.versions))
    with suppress(Unavailable):  # the voice is restored, and housekeeping starts the missing extractions
        speaker = speakers.read(speaker_id)
        for version in speaker.document.versions:
            extract_missing(jobs, profiles, speaker, version)
        found = speakers.read(speaker_id)
        if found.document.marks.life == document.marks.life:
            return found
    # The restored state is the answer, also if another request deleted the voice again meanwhile.
    return FoundSpeaker(document, id=speaker_id)
