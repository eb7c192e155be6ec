"""Lists the live speakers of a namespace page by page, from the view or else from the bucket.

A listing of the bucket yields slugs. A slug is the speaker's key, unless the key does not fit into the
alphabet of the bucket: then the slug is `x-` and a hash, and only the document holds the key. Reading all
documents for one page would take as long as a rebuild, so pages of the bucket have an order of their own:
first the speakers with hashed slugs, by slug, then all others by key.

A list may begin in one order and continue in the other, if the view becomes available or unavailable
meanwhile. The cursors make sure that no speaker is left out in this case, but some may be listed twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from services.shared.bucket.layout import documents_prefix, speaker_of
from services.shared.bucket.store import Store
from services.shared.model.speaker import SpeakerId, is_hashed_slug
from services.shared.registry.speakers import FoundSpeaker, Speakers
from services.shared.view.copies import ViewIncomplete
from speaker_registry.errors import Unavailable
from speaker_registry.names import SpeakerName, slug_of

NAMES_SEARCHED = 5_000
"""Largest number of names that a search for a part of the name examines for one page."""
MAX_PAGE_OF_BUCKET = 101
"""Largest number of documents that are read for one page. The API's largest page needs this many."""
PAGE_BYTES = 1024**2
"""A page ends after the voice whose texts bring the total to this many bytes. A hundred voices with the
longest texts would be an answer of 6 MB or more.
"""
_ALL = "~"
"""A text that sorts after every slug."""


@dataclass(frozen=True, slots=True)
class SpeakerPage:
    """One page of a namespace's live speakers."""

    entries: Sequence[tuple[str, FoundSpeaker]]
    """The speakers, each as a pair with the cursor at which the list continues after it."""
    last: str
    """The cursor at which the next page starts. More speakers than the entries may have been examined."""
    more: bool
    of_bucket: bool = False
    """True if the page was made from the bucket, because the view could not answer."""

    @property
    def speakers(self) -> list[FoundSpeaker]:
        return [speaker for _, speaker in self.entries]

    def within_page_bytes(self) -> Self:
        """Return the page, or a shorter one that ends after `PAGE_BYTES` of texts of default versions."""
        room = PAGE_BYTES
        for position, (cursor, speaker) in enumerate(self.entries[:-1], start=1):
            room -= speaker.document.default.text_bytes
            if room <= 0:
                return replace(self, entries=self.entries[:position], last=cursor, more=True)
        return self


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position at which a list continues.

    Its text is the key alone if all speakers up to the key have been listed, as in lists from the view.
    Otherwise the text is `/{hashed}/{key}`. The two cannot be confused, because no key contains a `/`.
    """

    key: str
    """All speakers with plain slugs up to this key have been listed."""
    hashed: str = ""
    """All speakers with hashed slugs up to this slug have been listed. If it is empty, all speakers up to
    `key` have been listed, whatever their slugs.
    """

    @classmethod
    def parse(cls, text: str) -> Self:
        if not text.startswith("/"):
            return cls(text)
        hashed, _, key = text[1:].partition("/")
        return cls(key, hashed)

    def __str__(self) -> str:
        return f"/{self.hashed}/{self.key}" if self.hashed else self.key

    def after(self, slug: str) -> Self:
        """Return the cursor at which the list continues when everything up to this slug has been listed."""
        if is_hashed_slug(slug):
            return replace(self, hashed=slug)
        return replace(self, hashed=_ALL, key=slug)


def speaker_page(
    speakers: Speakers, store: Store, namespace: str, *, after: str = "", limit: int, part: str | None = None
) -> SpeakerPage:
    """Return up to `limit` live speakers, ordered by key, starting after the cursor `after`.

    With `part`, only keys that contain `part` are returned, and at most `NAMES_SEARCHED` keys are examined.

    A speaker whose document cannot be understood is left out, so that it does not hide the others. The damage
    is logged and counted.

    While the view cannot be read or does not hold every speaker, the page is made from up to
    `MAX_PAGE_OF_BUCKET` documents. Raises `Unavailable`.
    """
    try:
        return _page_of_view(speakers, namespace, Cursor.parse(after).key, limit, part)
    except Unavailable:
        found = _page_of_bucket(speakers, store, namespace, after, limit)
    if part is None:
        return found
    named = [entry for entry in found.entries if part in (entry[1].document.key or "")]
    return replace(found, entries=named)


def _page_of_view(
    speakers: Speakers, namespace: str, after: str, limit: int, part: str | None
) -> SpeakerPage:
    searched = limit if part is None else NAMES_SEARCHED
    keys = keys_in_view(speakers, namespace, after=after, limit=searched + 1)
    named = [key for key in keys[:searched] if part is None or part in key]
    more, last = len(keys) > searched, keys[:searched][-1] if keys else after
    if len(named) > limit:
        more, last = True, named[limit - 1]
    return SpeakerPage(read_live(speakers, namespace, named[:limit]), last=last, more=more)


def keys_in_view(
    speakers: Speakers, namespace: str, *, after: str = "", limit: int, pinned: bool = False
) -> list[str]:
    """Return the keys that `SpeakerView.names` does. Raises `Unavailable`, also while the view does not hold
    every speaker.
    """
    if not speakers.view.is_complete():
        raise ViewIncomplete
    return speakers.view.names(namespace, after=after, limit=limit, pinned=pinned)


def read_live(speakers: Speakers, namespace: str, keys: Sequence[str]) -> list[tuple[str, FoundSpeaker]]:
    """Return the live speakers with these keys, without those whose documents cannot be understood."""
    found = speakers.read_many([SpeakerId.of(namespace, SpeakerName(key, key)) for key in keys])
    read = zip(keys, found, strict=True)
    return [(key, one) for key, one in read if isinstance(one, FoundSpeaker) and one.document.live]


def _page_of_bucket(speakers: Speakers, store: Store, namespace: str, after: str, limit: int) -> SpeakerPage:
    with speakers.reading_bucket():
        slugs, more = _slugs(store, namespace, Cursor.parse(after), min(limit, MAX_PAGE_OF_BUCKET))
        found = speakers.read_many([SpeakerId(namespace, slug) for slug in slugs])
    cursor, entries = Cursor.parse(after), []
    for slug, one in zip(slugs, found, strict=True):
        cursor = cursor.after(slug)
        if isinstance(one, FoundSpeaker) and one.document.live:
            entries.append((str(cursor), one))
    return SpeakerPage(entries, last=str(cursor), more=more, of_bucket=True)


def _slugs(store: Store, namespace: str, after: Cursor, limit: int) -> tuple[list[str], bool]:
    """Return the next slugs after a cursor, including those of deleted speakers, and whether there are more.

    No document is read.
    """
    listed = (speaker_of(stored.key) for stored in store.list(documents_prefix(namespace)).objects)
    found = [one.slug for one in listed if one is not None]
    hashed = sorted(slug for slug in found if is_hashed_slug(slug) and slug > after.hashed)
    plain = sorted(slug for slug in found if slug_of(slug) == slug and slug > after.key)
    return (hashed + plain)[:limit], len(hashed) + len(plain) > limit
