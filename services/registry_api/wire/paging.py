"""Finds one page of the voices that match a filter, in the order of their keys. Knows no answers."""

from collections.abc import Callable
from dataclasses import dataclass

from services.registry_api.operations.speaker_pages import SpeakerPages
from services.shared.index.reading import IndexedSpeaker

MAX_EXAMINED = 100
"""Once a filtered page has examined this many voices, it reads no further ones, and `more` tells whether
there are any. So a page examines fewer than twice as many, however many voices there are and however few
match.
"""
PAGE_SIZE = 100


@dataclass(frozen=True, slots=True)
class VoicePage:
    """The matching voices among those that were examined."""

    found: list[IndexedSpeaker]
    last: str
    """The cursor after which the next page starts. It may be the key of a voice that does not match."""
    more: bool
    of_facts: bool = False
    """True if the voices were read from the bucket, because the index was unavailable."""

    @property
    def first(self) -> str | None:
        return key_of(self.found[0]) if self.found else None


def find_voices(
    pages: SpeakerPages,
    namespace: str,
    *,
    after: str,
    limit: int,
    matches: Callable[[IndexedSpeaker], bool],
    part: str | None = None,
) -> VoicePage:
    """Return up to `limit` matching voices among the next `MAX_EXAMINED` after the cursor `after`.

    If `more` is true, the next page continues from `last`, even if this page has fewer than `limit` voices or
    none. Voices that are added or deleted between two pages neither hide nor repeat other voices. While the
    index is unavailable, a page examines fewer voices.

    Args:
        matches: decides by a voice's state whether it belongs to the page.
        part: only voices whose key contains this. Keys are compared before voices are examined, so one page
            covers far more voices.
    """
    found: list[IndexedSpeaker] = []
    last, examined, more, size = after, 0, True, min(PAGE_SIZE, limit + 1)
    while more and examined < MAX_EXAMINED:
        page = pages.page(namespace, after=last, limit=size, part=part)
        for cursor, indexed in page.entries:
            if matches(indexed):
                if len(found) == limit:
                    return VoicePage(found, last, True)
                found.append(indexed)
            last = cursor
        examined += size
        last, more, size = page.last, page.more, PAGE_SIZE
        if page.of_facts and more:
            return VoicePage(found, last, True, of_facts=True)
    return VoicePage(found, last, more)


def key_of(indexed: IndexedSpeaker) -> str:
    return indexed.speaker.newest.record.key
