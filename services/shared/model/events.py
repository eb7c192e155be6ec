"""What happened to a speaker between two revisions of its document, in the words of the event stream. Pure.

Listeners may miss events, and compare revisions: an event says what to look at, never what is true.
"""

from collections.abc import Iterator

from services.shared.model.document import SpeakerDocument


def events_between(before: SpeakerDocument, after: SpeakerDocument) -> tuple[str, ...]:
    """Return what a listener has to hear about. A change that nobody sees is told as `updated`."""
    return tuple(_events(before, after)) or ("updated",)


def _events(before: SpeakerDocument, after: SpeakerDocument) -> Iterator[str]:
    old = {version.vuid: version for version in before.versions}
    new = {version.vuid: version for version in after.versions}
    if before.live and (not after.live or after.marks.life != before.marks.life):
        yield "deleted"
    if after.live and (not before.live or after.marks.life != before.marks.life):
        yield "registered"
    if old.keys() != new.keys():
        yield "versions"
    if any(old[vuid].artifacts != new[vuid].artifacts for vuid in old.keys() & new.keys()):
        yield "artifacts"
    if any(old[vuid].failures != new[vuid].failures for vuid in old.keys() & new.keys()):
        yield "failures"
    if before.aliases != after.aliases:
        yield "aliases"
