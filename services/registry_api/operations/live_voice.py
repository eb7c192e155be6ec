"""Changes a live voice, by its name or its id. Knows no HTTP."""

from collections.abc import Callable

from services.shared.model.document import SpeakerDocument
from services.shared.registry.change import Decide
from services.shared.registry.lookup import expect, locate
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.names import SpeakerName

Check = Callable[[SpeakerDocument], None]
"""This is called with the newest document before it is changed, and raises if it is not the one to change."""


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
    """Commit what `decide` makes of the newest document. Returns the speaker then.

    Args:
        name: the voice's name or its id, as in `lookup.find`.
        did, takes_away: as in `Change.commit`.
        check: is called only if something is to be changed, so that the repeat of a request whose answer was
            lost is not refused for what the first one did.

    Raises:
        VoiceNotFound, and what `decide` and `check` raise.
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
