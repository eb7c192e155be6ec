"""Decides when the alias `default` moves to a newer version by itself, and explains why it does not. Pure.

It moves once every required profile of the newer version is ready or will never be. It never moves to a
version that lacks a profile which the current version serves, or a required profile which the current version
will serve. Only profiles count here, not the fingerprints with which their artifacts were made.

Callers can keep it where it is: by moving it by hand, until that is undone, or with the promotion policy
`manual` of the voice.
"""

from collections.abc import Sequence

from services.shared.model.document import SpeakerDocument
from services.shared.model.records import Alias, Version
from services.shared.model.status import unsupported_reason
from speaker_registry.engine import Profile
from speaker_registry.names import DEFAULT


def promoted(document: SpeakerDocument, required: Sequence[Profile]) -> SpeakerDocument:
    """Move `default` to the newest version that qualifies, or return the same document."""
    if not document.live or _why_default_stays(document):
        return document
    default = document.default
    if document.newest.number <= default.number:
        return document
    kept = _serves_or_will(default, required)
    names = {profile.name for profile in required}
    for version in reversed(document.versions):
        if version.number <= default.number:
            break
        ended = all(_ended(version, profile) for profile in required)
        if ended and version.served & names and version.served >= kept:
            alias = Alias(vuid=version.vuid, moved=document.revision + 1)
            return document.having(aliases={**document.aliases, DEFAULT: alias})
    return document


def held_back(document: SpeakerDocument, version: Version, required: Sequence[Profile]) -> str | None:
    """Say why `default` will not move to a newer version even after all extractions of that version have
    ended.

    Returns None if `default` will move to the version, or has moved to it or past it.
    """
    default = document.default
    if version.number <= default.number:
        return None
    if reason := _why_default_stays(document):
        return reason
    missing = _serves_or_will(default, required) - _serves_or_will(version, required)
    if not missing:
        return None
    return (
        f"`default` stays at version {default.number}: version {version.number} will have no artifact "
        f"for {', '.join(sorted(missing))}, so engines that use it would lose the voice"
    )


def _why_default_stays(document: SpeakerDocument) -> str | None:
    """Say why `default` does not move by itself to any version. Returns None if it may move."""
    if document.about.promotion == "manual":
        reason = "because the voice's promotion policy is `manual`"
    elif document.aliases[DEFAULT].by_hand:
        reason = "to which it was moved by hand"
    else:
        return None
    return f"`default` stays at version {document.default.number}, {reason}"


def _serves_or_will(version: Version, required: Sequence[Profile]) -> frozenset[str]:
    """Return the profiles that are ready, and the required ones that are not decided yet."""
    return version.served | {profile.name for profile in required if not _ended(version, profile)}


def _ended(version: Version, profile: Profile) -> bool:
    """Return whether nothing more is expected for a profile: it is ready, given up or impossible."""
    if profile.name in version.served or version.failure(profile.name) is not None:
        return True
    return unsupported_reason(version, profile) is not None
