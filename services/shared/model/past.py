"""The past of a voice, in order of time: the changes that callers made to it, and the promotions of encoders
that changed which artifacts it serves. Pure.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from services.shared.model.decisions import Decision
from services.shared.model.document import KEPT_ENTRIES, Entry, SpeakerDocument
from services.shared.model.profile_document import ProfileDocument
from services.shared.model.records import Version

POSITION_PATTERN = r"([0-9]{1,18})(?:-([0-9]{1,18})-([0-9]{1,18})-([A-Za-z0-9_.-]{1,128}))?"
"""The form of a position's text, as the OpenAPI document has it too."""
_POSITION = re.compile(POSITION_PATTERN)


@dataclass(frozen=True, slots=True, order=True)
class HistoryPosition:
    """The position of an event in the past of a voice. Later positions are greater."""

    revision: int
    """The revision of the voice's document that a change made. A promotion has the revision of the last
    change that was not made after it.
    """
    at: int = 0
    """The time of a promotion. 0 for a change of the voice."""
    decision: int = 0
    """The revision of the profile's document that a promotion made."""
    profile: str = ""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the text of a position. Returns None if the text is not that of a position."""
        match = _POSITION.fullmatch(text)
        if match is None:
            return None
        return cls(int(match[1]), int(match[2] or 0), int(match[3] or 0), match[4] or "")

    def __str__(self) -> str:
        of_change = str(self.revision)
        return f"{of_change}-{self.at}-{self.decision}-{self.profile}" if self.profile else of_change


@dataclass(frozen=True, slots=True)
class Happened:
    """A change that callers made to a voice, or a promotion that changed which artifacts it serves."""

    position: HistoryPosition
    what: Entry | Decision


def concerned_profiles(document: SpeakerDocument) -> frozenset[str]:
    """Return the profiles for which a voice, live or deleted but still kept, has artifacts."""
    return frozenset(
        profile for version in _versions(document) for profile, made in version.artifacts.items() if made
    )


def past_of(document: SpeakerDocument, profiles: Mapping[str, ProfileDocument]) -> list[Happened]:
    """Return the past of a voice, as far as it is remembered, oldest first.

    Args:
        profiles: the documents of the voice's `concerned_profiles`, by the names of the profiles.
    """
    changes = [Happened(HistoryPosition(one.revision), one) for one in document.history]
    return sorted([*changes, *_promotions(document, profiles)], key=lambda one: one.position)


def _promotions(document: SpeakerDocument, profiles: Mapping[str, ProfileDocument]) -> Iterator[Happened]:
    if not _versions(document):
        return
    since, until = _since(document), _until(document)
    for name, profile in profiles.items():
        for one in profile.decisions:
            if one.is_promotion and since <= one.at <= until:
                earlier = [entry.revision for entry in document.history if entry.at <= one.at]
                yield Happened(HistoryPosition(max(earlier, default=0), one.at, one.revision, name), one)


def _versions(document: SpeakerDocument) -> tuple[Version, ...]:
    """Return the versions of a live voice, or those that an undelete would restore."""
    deleted = document.last_deleted
    return document.versions or (deleted.versions if deleted else ())


def _since(document: SpeakerDocument) -> int:
    """Return the time from which on promotions belong to the past of a voice.

    A version that was restored from an archive is older than its registration here. If a voice has had more
    changes than are remembered, promotions before the oldest remembered one are left out too.
    """
    oldest = _versions(document)[0]
    history = document.history
    registered = (one.at for one in history if one.did == "register" and one.version == oldest.number)
    since = next(registered, int(oldest.created_at))
    return max(since, history[0].at) if len(history) >= KEPT_ENTRIES else since


def _until(document: SpeakerDocument) -> float:
    """Return the time until which promotions belong to the past of a voice."""
    deleted = document.last_deleted
    return deleted.deleted_at if deleted and not document.live else math.inf
