"""One page of the voices that a caller wants, by key. Knows no answers."""

from collections.abc import Callable
from dataclasses import dataclass

from services.shared.index_reading import IndexedSpeaker
from services.shared.registrar import Registrar

LOOKED_AT = 2_000
"""Voices that one filtered page looks at, at most: `more` then says that there is more to look at."""
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class VoicePage:
    """`last`: the key after which the next page starts; it may be of a voice that was not wanted."""

    found: list[IndexedSpeaker]
    last: str
    more: bool

    @property
    def first(self) -> str | None:
        return key_of(self.found[0]) if self.found else None


def find_voices(
    registrar: Registrar,
    namespace: str,
    *,
    after: str,
    limit: int | None,
    wanted: Callable[[IndexedSpeaker], bool],
) -> VoicePage:
    """Up to `limit` wanted voices, or all, from the one after `after`. The cursor is a key: voices that
    come or go between two pages neither hide nor repeat others.
    """
    found: list[IndexedSpeaker] = []
    last, looked_at, more = after, 0, True
    while more and (limit is None or looked_at < LOOKED_AT):
        page, more = registrar.page(namespace, after=last, limit=_AT_ONCE if limit is None else limit + 1)
        for indexed in page:
            if wanted(indexed):
                if len(found) == limit:
                    return VoicePage(found, last, True)
                found.append(indexed)
            last = key_of(indexed)
        looked_at += len(page)
    return VoicePage(found, last, more)


def key_of(indexed: IndexedSpeaker) -> str:
    return indexed.speaker.newest.record.key
