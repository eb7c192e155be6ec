"""Returns lists page by page: the speakers of a namespace, and the versions of a speaker. Knows no HTTP."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from services.registry_api.operations.speakers import Speakers
from services.shared.bucket.fact_pages import Cursor, page_of_slugs
from services.shared.bucket.facts import read_certain
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Store
from services.shared.index.gate import GateClosed
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import SpeakerIndex, VersionSelection
from services.shared.model.domain import Speaker, SpeakerVersion
from services.shared.registry.newest_versions import newest
from speaker_registry.errors import Unavailable
from speaker_registry.names import SpeakerName

NAMES_SEARCHED = 5_000
"""A search for a part of the name examines this many names for one page."""
MAX_PAGE_OF_FACTS = 101
"""The most speakers whose facts are read for one page. The API's largest page needs this many."""
PAGE_BYTES = 1024**2
"""A page of versions, or of a manifest, ends after the version whose record brings the total to this many
bytes. A hundred versions with the longest texts would be an answer of 6 MB or more.
"""


@dataclass(frozen=True, slots=True)
class SpeakerPage:
    """One page of a namespace's live speakers."""

    entries: Sequence[tuple[str, IndexedSpeaker]]
    """For each speaker, the cursor at which the list continues after it, and the speaker."""
    last: str
    """The cursor at which the next page starts. More speakers than the entries may have been examined."""
    more: bool
    of_facts: bool = False
    """True if the page was made from the facts, because the index could not answer."""

    @property
    def speakers(self) -> list[IndexedSpeaker]:
        return [indexed for _, indexed in self.entries]

    def within_page_bytes(self) -> Self:
        """Return the page, or a shorter one that ends after `PAGE_BYTES` of texts of default versions."""
        room = PAGE_BYTES
        for position, (cursor, indexed) in enumerate(self.entries[:-1], start=1):
            room -= indexed.speaker.default.record.text_bytes
            if room <= 0:
                return replace(self, entries=self.entries[:position], last=cursor, more=True)
        return self


class SpeakerPages:
    """Reads pages of speakers and of versions. All methods may raise `Unavailable`."""

    def __init__(
        self,
        speakers: Speakers,
        store: Store,
        index: SpeakerIndex,
        run_all: Callable[[Iterable[Callable[[], object]]], None],
    ) -> None:
        self._speakers = speakers
        self._store = store
        self._index = index
        self._run_all = run_all

    def page(self, namespace: str, *, after: str = "", limit: int, part: str | None = None) -> SpeakerPage:
        """Return up to `limit` live speakers in the order of their keys, starting after the cursor `after`.

        With `part`, the page has those of the next `NAMES_SEARCHED` speakers whose key contains `part`.

        While the index cannot be trusted or reached, the page is made from the facts of up to
        `MAX_PAGE_OF_FACTS` speakers, in the order that `fact_pages` describes.
        """
        try:
            return self._page_of_index(namespace, Cursor.parse(after).key, limit, part)
        except (GateClosed, Unavailable):
            page = self._page_of_facts(namespace, after, limit)
            if part is None:
                return page
            named = [entry for entry in page.entries if part in entry[1].speaker.newest.record.key]
            return replace(page, entries=named)

    def _page_of_index(self, namespace: str, after: str, limit: int, part: str | None) -> SpeakerPage:
        searched = limit if part is None else NAMES_SEARCHED
        keys = self._index.names(namespace, after=after, limit=searched + 1)
        named = [key for key in keys[:searched] if part is None or part in key]
        more, last = len(keys) > searched, keys[:searched][-1] if keys else after
        if len(named) > limit:
            more, last = True, named[limit - 1]
        wanted = [
            (SpeakerId.of(namespace, SpeakerName(key, key)), VersionSelection()) for key in named[:limit]
        ]
        entries = [
            (key, indexed)
            for key, indexed in zip(named, self._index.look_many(wanted), strict=False)
            if indexed.speaker.live
        ]
        return SpeakerPage(entries, last=last, more=more)

    def _page_of_facts(self, namespace: str, after: str, limit: int) -> SpeakerPage:
        """Make a page by listing the folders of the namespace and reading the facts of its speakers."""
        with self._speakers.reading_facts():
            page = page_of_slugs(self._store, namespace, after, min(limit, MAX_PAGE_OF_FACTS))
            found: dict[str, Speaker] = {}

            def read(slug: str) -> None:
                found[slug] = read_certain(self._store, SpeakerId(namespace, slug))

            self._run_all([partial(read, slug) for slug in page.slugs])
        entries = [
            (cursor, IndexedSpeaker(found[slug]))
            for slug, cursor in zip(page.slugs, page.cursors, strict=True)
            if found[slug].live
        ]
        last = page.cursors[-1] if page.cursors else after
        return SpeakerPage(entries, last=last, more=page.more, of_facts=True)

    def versions(
        self, namespace: str, name: str, *, before: int | None, limit: int
    ) -> tuple[IndexedSpeaker, list[SpeakerVersion], bool]:
        """Return a live speaker, a page of its versions, and whether there are more versions.

        The page has the versions with a number below `before`, newest first. It ends early after
        `PAGE_BYTES`, so it may be shorter than `limit` although there are more. Raises the same errors as
        `Speakers.find`.
        """
        indexed = self._speakers.find(
            namespace, name, VersionSelection(before=before, limit=limit, max_bytes=PAGE_BYTES)
        )
        page = _page(indexed, before, limit)
        more = bool(page) and page[-1] is not indexed.speaker.versions[0]  # the oldest is always read
        return indexed, page, more


def _page(indexed: IndexedSpeaker, before: int | None, limit: int) -> list[SpeakerVersion]:
    """Return up to `limit` versions with a number below `before`, newest first.

    All versions but the last have less than `PAGE_BYTES` together. The index counts the bytes of whole
    records. Where the index did not end the page, only the bytes of texts count, which are most of a large
    record.
    """
    page, room = [], PAGE_BYTES
    for version in newest(indexed.speaker.versions, before, limit):
        if version.number < indexed.page_end or room <= 0:
            break  # the oldest version, and versions that aliases point to, may follow after a gap
        page.append(version)
        room -= version.record.text_bytes
    return page
