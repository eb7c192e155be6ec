"""Goes through the versions of a speaker from the newest to the oldest, and reads them a page at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from services.shared.bucket.keys import SpeakerId
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import VersionSelection
from services.shared.model.domain import SpeakerVersion

_PAGE = 20
"""Versions are read this many at a time to find the newest that is ready. Nearly always it is in the first
page.
"""
NEWEST_MADE = VersionSelection(limit=_PAGE, made=True)
"""Selects the first page for `newest_first`: the newest versions that have had an artifact."""


def newest(versions: Sequence[SpeakerVersion], before: int | None, limit: int | None) -> list[SpeakerVersion]:
    """Return the newest `limit` versions with a number below `before`, newest first."""
    return [one for one in reversed(versions) if before is None or one.number < before][:limit]


def newest_first(
    look: Callable[[SpeakerId, VersionSelection], IndexedSpeaker],
    speaker_id: SpeakerId,
    indexed: IndexedSpeaker,
    vuid: str | None = None,
) -> Iterator[tuple[IndexedSpeaker, SpeakerVersion]]:
    """Yield the versions of a speaker, newest first, each with the look that read it.

    Every version that has an artifact is among them, and so is the version `vuid`. Versions without artifacts
    may be missing.

    Args:
        look: reads further pages, for example `SpeakerIndex.look`.
        indexed: the first page, read with `NEWEST_MADE`.
    """
    before = None
    while True:
        page = newest(indexed.speaker.versions, before, _PAGE if indexed.left_out else None)
        yield from ((indexed, version) for version in page)
        if not indexed.left_out or not page:
            return
        before = page[-1].number
        indexed = look(speaker_id, replace(NEWEST_MADE, vuid=vuid, before=before))
