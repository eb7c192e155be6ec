"""Changes a live voice, which is found by its name or id. This module knows no HTTP."""

from collections.abc import Callable

from services.shared.model.document import SpeakerDocument
from services.shared.registry.change import Decide
from services.shared.registry.lookup import expect, locate
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.names import SpeakerName

Check = Callable[[SpeakerDocument], None]
"""A function that is called with the newest document before a change, and raises to refuse the change."""


def change_live_voice(
    speakers: Speakers,
    namespace: str,
    name: SpeakerName,
    decide: Decide,
    *,
    did: str,
    by: str,
    check: Check | None = None,
    takes_away: bool = False,
) -> FoundSpeaker:
    """Commit the document that `decide` makes from the newest one. Returns the changed speaker.

    Args:
        name: the voice's name or its id, as in `lookup.find`.
        did, takes_away: as in `Change.commit`.
        check: refuses the change by raising. It is called only if `decide` changes something, so that a
            request that is repeated after a lost answer is not refused because its first attempt succeeded.

    Raises:
        VoiceNotFound, and any error of `decide` and `check`.
        Unavailable: the voice was not changed, or it is not known whether it was.
    """
    until = speakers.deadline()
    seen = locate(speakers, namespace, name)

    def checked(document: SpeakerDocument) -> SpeakerDocument:
        expect(document, name, seen.id)
        after = decide(document)
        if check is not None and after is not document:
            check(document)
        return after

    with speakers.changing(seen.id, by=by, until=until) as change:
        document = change.commit(checked, did=did, takes_away=takes_away)
    return FoundSpeaker(document, seen.open_jobs, id=seen.id)
