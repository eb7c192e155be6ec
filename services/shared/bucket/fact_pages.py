"""Pages of a namespace's speakers from the bucket alone, for while the index cannot tell. Knows no Redis.

A listing of folders tells slugs. A slug is the speaker's key, unless the key does not fit into the alphabet
of the bucket: then the slug is `x-` and a hash, and only a record tells the key. To read all records for one
page would take as long as to rebuild the index, so pages of facts have an order of their own: first the
speakers with hashed slugs, by slug, then all others by key.

A list may begin in one order and go on in the other, when the index comes or goes meanwhile. The cursors make
sure that no speaker is left out then; some may be told twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from services.shared.bucket.keys import is_hashed_slug, speakers_folder
from services.shared.bucket.store import Store
from speaker_registry.names import slug_of

_ALL = "~"
"""Comes after every slug."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a list goes on.

    Written as the key alone where all speakers up to the key have been told, as by the index; else as
    `/{hashed}/{key}`: no key has a `/` in it.
    """

    key: str
    """Of the speakers with plain slugs, all up to this key have been told."""
    hashed: str = ""
    """Of the speakers with hashed slugs, all up to this slug have been told; or all up to `key`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        if not text.startswith("/"):
            return cls(text)
        hashed, _, key = text[1:].partition("/")
        return cls(key, hashed)

    def __str__(self) -> str:
        return f"/{self.hashed}/{self.key}" if self.hashed else self.key

    def after(self, slug: str) -> Self:
        """Where the list goes on when everything up to this slug has been told."""
        if is_hashed_slug(slug):
            return replace(self, hashed=slug)
        return replace(self, hashed=_ALL, key=slug)


@dataclass(frozen=True, slots=True)
class SlugPage:
    slugs: Sequence[str]
    cursors: Sequence[str]
    """Of each slug."""
    more: bool


def page_of_slugs(store: Store, namespace: str, after: str, limit: int) -> SlugPage:
    """The next slugs after a cursor, those of deleted speakers included. Reads no record."""
    cursor = Cursor.parse(after)
    found = store.folders(speakers_folder(namespace))
    hashed = sorted(slug for slug in found if is_hashed_slug(slug) and slug > cursor.hashed)
    plain = sorted(slug for slug in found if slug_of(slug) == slug and slug > cursor.key)
    slugs, cursors = (hashed + plain)[:limit], []
    for slug in slugs:
        cursor = cursor.after(slug)
        cursors.append(str(cursor))
    return SlugPage(slugs, cursors, len(hashed) + len(plain) > limit)
