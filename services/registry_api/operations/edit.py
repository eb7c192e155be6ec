"""Edits the description, labels, pin and promotion policy of a voice. This module knows no HTTP."""

from collections.abc import Mapping

import structlog

from services.registry_api.operations.live_voice import Check, change_live_voice
from services.registry_api.operations.register import Limits
from services.shared.model.changes import edited
from services.shared.model.document import Counts, SpeakerDocument
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.errors import QuotaExceeded
from speaker_registry.labels import changed_labels
from speaker_registry.names import SpeakerName

log = structlog.get_logger(__name__)


def edit(
    speakers: Speakers,
    profiles: Profiles,
    namespace: str,
    name: SpeakerName,
    *,
    labels: Mapping[str, str | None],
    members: Mapping[str, str | bool | None],
    limits: Limits,
    by: str,
    check: Check | None = None,
) -> FoundSpeaker:
    """Change the description, labels or pin of a voice. An edit that changes nothing writes nothing.

    Args:
        labels: the labels to set; None removes one.
        members: the new `description`, `pinned` and `promotion`, if they are to be changed.
        check: as in `change_live_voice`.

    Raises:
        VoiceNotFound, QuotaExceeded, Unavailable, and any error of `check`.
        InvalidRequest: a label is malformed, or there would be too many.
    """
    used = speakers.usage_so_far(namespace)

    def decide(document: SpeakerDocument) -> SpeakerDocument:
        about = document.about
        new = about.having(labels=changed_labels(about.labels, labels), **members)
        after = edited(document, new, profiles.required)
        added = after.counts.text_bytes - document.counts.text_bytes
        if added > 0 and not limits.have_room(used, Counts(voices=0, bytes=added, text_bytes=added)):
            raise QuotaExceeded(
                f"Edit with {added} more bytes of texts refused: the namespace has no room for them, see "
                "GET /v1/quota. Delete a voice or shorten the texts first."
            )
        return after

    found = change_live_voice(speakers, namespace, name, decide, did="edit", by=by, check=check)
    log.info("voice.edited", speaker=str(found.id), members=sorted(members), labels=len(labels))
    return found
