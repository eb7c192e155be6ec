"""Lists a namespace's speakers page by page from the bucket alone, for use while the index is not available.
This module does not know Redis.

A listing of folders yields slugs. A slug is the speaker's key, unless the key does not fit into the alphabet
of the bucket: then the slug is `x-` and a hash, and only a record holds the key. Reading all records for one
page would take as long as rebuilding the index, so pages of facts have an order of their own: first the
speakers with hashed slugs, by slug, then all the rest by key.

A list may begin in one order and continue in the other, if the index comes or goes meanwhile. The cursors
make sure that no speaker is left out then; some may be listed twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from services.shared.bucket.keys import is_hashed_slug, speakers_folder
from services.shared.bucket.store import Store
from speaker_registry.names import slug_of

_ALL = "~"
"""A text that sorts after every slug."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor is the position at which a list continues.

    Its text is the key alone if all speakers up to the key have been listed, as the index does. Otherwise the
    text is `/{hashed}/{key}`. The two cannot be confused, because no key contains a `/`.
    """

    key: str
    """All speakers with plain slugs up to this key have been listed."""
    hashed: str = ""
    """All speakers with hashed slugs up to this slug have been listed. If it is empty, all up to `key` have
    been.
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


@dataclass(frozen=True, slots=True)
class SlugPage:
    slugs: Sequence[str]
    cursors: Sequence[str]
    """The cursor after each slug, in the same order."""
    more: bool


def page_of_slugs(store: Store, namespace: str, after: str, limit: int) -> SlugPage:
    """Return the next slugs after a cursor, including those of deleted speakers. No record is read."""
    cursor = Cursor.parse(after)
    found = store.folders(speakers_folder(namespace))
    hashed = sorted(slug for slug in found if is_hashed_slug(slug) and slug > cursor.hashed)
    plain = sorted(slug for slug in found if slug_of(slug) == slug and slug > cursor.key)
    slugs, cursors = (hashed + plain)[:limit], []
    for slug in slugs:
        cursor = cursor.after(slug)
        cursors.append(str(cursor))
    return SlugPage(slugs, cursors, len(hashed) + len(plain) > limit)
