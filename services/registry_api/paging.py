"""One page of the voices that a caller wants, by key. Knows no answers."""

from collections.abc import Callable
from dataclasses import dataclass

from services.shared.index_reading import IndexedSpeaker
from services.shared.registrar import Registrar
from speaker_registry.errors import Unavailable

LOOKED_AT = 2_000
"""Voices that one filtered page looks at, at most: `more` then says that there is more to look at."""
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class VoicePage:
    """`last`: the cursor after which the next page starts; it may be of a voice that was not wanted."""

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
    """Up to `limit` wanted voices, or all, from the one after the cursor `after`. Voices that come or go
    between two pages neither hide nor repeat others. While the index is away, a page may hold fewer than
    `limit` although there are more.

    Raises:
        Unavailable: the index is away, and all voices were asked for, which are more than one page.
    """
    found: list[IndexedSpeaker] = []
    last, looked_at, more = after, 0, True
    while more and (limit is None or looked_at < LOOKED_AT):
        page = registrar.page(namespace, after=last, limit=_AT_ONCE if limit is None else limit + 1)
        for cursor, indexed in page.entries:
            if wanted(indexed):
                if len(found) == limit:
                    return VoicePage(found, last, True)
                found.append(indexed)
            last = cursor
        looked_at += len(page.entries)
        last, more = page.last, page.more
        if page.of_facts and more:
            return _only_page(found, last, limit)
    return VoicePage(found, last, more)


def _only_page(found: list[IndexedSpeaker], last: str, limit: int | None) -> VoicePage:
    """While the index is away each request reads the records of one page at most."""
    if limit is None:
        raise Unavailable(
            "The index is away, and a list from the bucket is given page by page: ask again in a moment, or "
            "with 'limit' from 1 to 100.",
            retry_after_seconds=5,
        )
    return VoicePage(found, last, True)


def key_of(indexed: IndexedSpeaker) -> str:
    return indexed.speaker.newest.record.key
