"""Derives the events of the event stream from two revisions of a speaker's document. Pure.

Listeners may miss events, so they compare revisions. An event names what has changed, but not its new state.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from services.shared.model.document import SpeakerDocument
from services.shared.model.records import ArtifactRecord, Version

ADMITTED = "voice.admitted"
"""The view received a speaker that existed before. The speaker has not changed."""
CREATED = "voice.created"
"""A voice was registered, or a deleted voice was restored."""
PINNED = "voice.pinned"
"""A voice was pinned, so it comes before others in lists that have pinned voices first."""


@dataclass(frozen=True, slots=True)
class SpeakerEvent:
    """One change of a speaker, of which listeners are notified."""

    what: str
    takes_away: bool = False
    """True if answers from before the event may now be wrong."""
    fields: Mapping[str, str] = field(default_factory=dict)


def events_between(before: SpeakerDocument, after: SpeakerDocument) -> tuple[SpeakerEvent, ...]:
    """Return the events of a change. A change without any visible effect becomes a `voice.updated` event.

    Events after which no version may be left carry `first_id`, so that clients can tell which voice is meant.

    Args:
        before: the document that the view held. If the view lacked the speaker, only the first revision
            counts as a change.
    """
    if before.revision == 0 and after.revision > 1:
        return (SpeakerEvent(ADMITTED),)
    return tuple(_events(before, after)) or (SpeakerEvent("voice.updated"),)


def _events(before: SpeakerDocument, after: SpeakerDocument) -> Iterator[SpeakerEvent]:
    same_life = before.live and after.live and before.marks.life == after.marks.life
    old = {version.vuid: version for version in before.versions} if same_life else {}
    known_as = {"first_id": before.first_id} if before.first_id else {}
    if before.live and not same_life:
        yield SpeakerEvent("voice.deleted", True, known_as)
    if same_life and old.keys() - {version.vuid for version in after.versions}:
        yield SpeakerEvent("versions.removed", True, known_as)
    if after.live and not same_life:
        yield SpeakerEvent(CREATED)
    if same_life and after.about.pinned and not before.about.pinned:
        yield SpeakerEvent(PINNED)
    for version in after.versions:
        known = old.get(version.vuid)
        if known is None:
            yield SpeakerEvent(
                "version.created", fields={"version_id": version.id, "version": str(version.number)}
            )
        else:
            yield from _of_version(known, version)
    if same_life:
        yield from _of_aliases(before, after)


def _of_version(before: Version, after: Version) -> Iterator[SpeakerEvent]:
    for profile in sorted({*before.artifacts, *after.artifacts}):
        old, new = before.artifacts.get(profile, ()), after.artifacts.get(profile, ())
        if old != new:
            yield from _of_artifacts(after.id, profile, old, new)
    for profile in after.failures:
        failure = after.failure(profile)
        if failure is not None and failure != before.failure(profile):
            yield SpeakerEvent("artifact.failed", fields={"version_id": after.id, "profile": profile})


def _of_artifacts(
    version_id: str, profile: str, old: tuple[ArtifactRecord, ...], new: tuple[ArtifactRecord, ...]
) -> Iterator[SpeakerEvent]:
    known = {one.object for one in old}
    for one in new:
        if one.object not in known:
            fields = {"version_id": version_id, "profile": profile, "fingerprint": one.fingerprint}
            yield SpeakerEvent("artifact.ready", bool(old), fields)
    kept = {one.object for one in new}
    if old and old[-1].object not in kept and kept <= known:
        yield SpeakerEvent("artifact.void", True, {"version_id": version_id, "profile": profile})
    elif not known <= kept:  # artifacts of encoders that are no longer in use
        yield SpeakerEvent("artifacts.dropped", True, {"version_id": version_id, "profile": profile})


def _of_aliases(before: SpeakerDocument, after: SpeakerDocument) -> Iterator[SpeakerEvent]:
    for name in sorted({*before.aliases, *after.aliases}):
        old, new = before.aliases.get(name), after.aliases.get(name)
        if old is None or new is None or old.vuid != new.vuid:
            pointed = after.version(new.vuid) if new else None
            fields = {"alias": name, **({"version_id": pointed.id} if pointed else {})}
            yield SpeakerEvent("alias.updated", old is not None, fields)
