"""One page of the voices that a caller wants, by key. Knows no answers."""

from collections.abc import Callable
from dataclasses import dataclass

from services.shared.index.reading import IndexedSpeaker
from services.shared.registry.registrar import Registrar

LOOKED_AT = 100
"""Voices that one filtered page looks at, at most: `more` then says that there is more to look at. It takes
as long as a page of 100 voices, however many voices there are and however few are wanted."""
AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class VoicePage:
    """`last`: the cursor after which the next page starts; it may be of a voice that was not wanted."""

    found: list[IndexedSpeaker]
    last: str
    more: bool
    of_facts: bool = False
    """Whether the index was away."""

    @property
    def first(self) -> str | None:
        return key_of(self.found[0]) if self.found else None


def find_voices(
    registrar: Registrar,
    namespace: str,
    *,
    after: str,
    limit: int,
    wanted: Callable[[IndexedSpeaker], bool],
    part: str | None = None,
) -> VoicePage:
    """Up to `limit` wanted voices from the one after the cursor `after`, among the next `LOOKED_AT`. Where
    `more` is true, the next page goes on from `last`, also where this one has fewer than `limit` or none.
    Voices that come or go between two pages neither hide nor repeat others. While the index is away, a page
    looks at fewer.

    Args:
        part: of the key. Names are searched before voices are looked at, so that this takes in far more.
    """
    found: list[IndexedSpeaker] = []
    last, looked_at, more, size = after, 0, True, min(AT_ONCE, limit + 1)
    while more and looked_at < LOOKED_AT:
        page = registrar.page(namespace, after=last, limit=size, part=part)
        for cursor, indexed in page.entries:
            if wanted(indexed):
                if len(found) == limit:
                    return VoicePage(found, last, True)
                found.append(indexed)
            last = cursor
        looked_at += size
        last, more, size = page.last, page.more, AT_ONCE
        if page.of_facts and more:
            return VoicePage(found, last, True, of_facts=True)
    return VoicePage(found, last, more)


def key_of(indexed: IndexedSpeaker) -> str:
    return indexed.speaker.newest.record.key
