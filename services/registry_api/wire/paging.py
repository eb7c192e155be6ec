"""Finds one page of the voices that match a filter, in the order of their keys, or one page of a voice's
versions, of its history or of a profile's.

This module does not know how answers are rendered.
"""

from collections.abc import Callable
from dataclasses import dataclass

from services.shared.bucket.store import Store
from services.shared.model.decisions import Decision
from services.shared.model.document import SpeakerDocument
from services.shared.model.past import Happened, HistoryPosition, concerned_profiles, past_of
from services.shared.model.profile_document import ProfileDocument
from services.shared.model.records import Version
from services.shared.registry.pages import speaker_page
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.errors import InvalidRequest

MAX_EXAMINED = 100
"""Once a filtered page has examined this many voices, it reads no further ones, and `more` tells whether
there are any. So a page examines fewer than twice as many, however many voices there are and however few
match.
"""
PAGE_SIZE = 100
_HIGHEST = "\U0010ffff"
"""The character that sorts after all others."""


@dataclass(frozen=True, slots=True)
class VoicePage:
    """The matching voices among those that were examined."""

    found: list[FoundSpeaker]
    last: str
    """The cursor after which the next page starts. It may be the key of a voice that does not match."""
    more: bool
    of_bucket: bool = False
    """True if the voices were read from the bucket, because the view was unavailable."""

    @property
    def first(self) -> str | None:
        return key_of(self.found[0]) if self.found else None


def find_voices(
    speakers: Speakers,
    store: Store,
    namespace: str,
    *,
    after: str,
    limit: int,
    matches: Callable[[FoundSpeaker], bool],
    part: str | None = None,
) -> VoicePage:
    """Return up to `limit` matching voices among the next `MAX_EXAMINED` after the cursor `after`.

    If `more` is true, the next page continues from `last`, even if this page has fewer than `limit` voices or
    none. Voices that are added or deleted between two pages neither hide nor repeat other voices. While the
    view is unavailable, a page examines fewer voices.

    Args:
        matches: decides by a voice's state whether it belongs to the page.
        part: only voices whose key contains this. Keys are compared before voices are examined, so one page
            covers far more voices. Once `NAMES_SEARCHED` keys hold too few voices for a full page, the page
            ends.
    """
    found: list[FoundSpeaker] = []
    last, examined, more, size = after, 0, True, min(PAGE_SIZE, limit + 1)
    while more and examined < MAX_EXAMINED:
        page = speaker_page(speakers, store, namespace, after=last, limit=size, part=part)
        for cursor, speaker in page.entries:
            if matches(speaker):
                if len(found) == limit:
                    return VoicePage(found, last, True)
                found.append(speaker)
            last = cursor
        asked, size = size, PAGE_SIZE
        examined += asked
        last, more = page.last, page.more
        if page.of_bucket and more:
            return VoicePage(found, last, True, of_bucket=True)
        if part is not None and len(page.entries) < asked:
            break  # another search would move as many keys again, often for nothing
    return VoicePage(found, last, more)


def is_in_state(profiles: Profiles, speaker: FoundSpeaker, profile: str | None, state: str | None) -> bool:
    """Return whether a voice is in a state: its own state, or that for a profile if the profile can use it.

    Args:
        state: None accepts every state.
    """
    version = speaker.document.default
    if profile is None:
        return state is None or profiles.state(speaker, version) == state
    status = profiles.status(speaker, version, profiles.get(profile))
    return not status.unsupported and state in {None, status.state}


def cursor_before(part: str) -> str:
    """Return a cursor after which the list soon comes to the keys that begin with `part`. It skips none."""
    last = part[-1:]
    if not "1" <= last <= "\ud7ff":  # no cursor may begin with `/`, or hold a surrogate
        return part[:-1]
    return f"{part[:-1]}{chr(ord(last) - 1)}{_HIGHEST}"


def key_of(speaker: FoundSpeaker) -> str:
    """Return the key of a live speaker's name."""
    return speaker.document.key or ""


def newest_versions(
    document: SpeakerDocument, *, before: int | None, limit: int
) -> tuple[list[Version], bool]:
    """Return the newest versions with a number below `before`, newest first, and whether there are more."""
    found = [one for one in reversed(document.versions) if before is None or one.number < before]
    return found[:limit], len(found) > limit


def newest_changes(
    document: SpeakerDocument, profiles: Profiles, *, before: HistoryPosition | None, limit: int
) -> tuple[list[Happened], bool]:
    """Return the newest entries of a voice's history before a position, newest first, and whether there are
    more.
    """
    past = past_of(document, profiles.documents(concerned_profiles(document)))
    found = [one for one in reversed(past) if before is None or one.position < before]
    return found[:limit], len(found) > limit


def position_in_history(text: str, *, param: str = "after") -> HistoryPosition | None:
    """Return the position after which a page of a voice's history begins. None for an empty text, which means
    the first page. Raises `InvalidRequest`.
    """
    if not text:
        return None
    position = HistoryPosition.parse(text)
    if position is None:
        raise InvalidRequest(
            f"{text[:80]!a} is no position in a history; accepted: `last_id` of the previous page.",
            param=param,
        )
    return position


def newest_decisions(
    document: ProfileDocument, *, before: int | None, limit: int
) -> tuple[list[Decision], bool]:
    """Return the newest decisions with a revision below `before`, newest first, and whether there are
    more.
    """
    found = [one for one in reversed(document.decisions) if before is None or one.revision < before]
    return found[:limit], len(found) > limit
