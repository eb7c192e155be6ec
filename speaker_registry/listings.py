"""Lists that the registry sends page by page: the request for a page, and for the next one."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from pydantic import BaseModel

from speaker_registry.arguments import given
from speaker_registry.errors import InvalidRequest, Unavailable
from speaker_registry.exchange import Request
from speaker_registry.schemas import Page

_PAGE_SIZE = 100
"""Maximum size of a page of the registry."""
_MAX_EMPTY_PAGES = 10_000
"""More pages without items in a row are not read. The registry looks at a hundred items for each."""
Item = TypeVar("Item", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Listing(Generic[Item]):
    """A list that is read page by page."""

    path: str
    page: type[Page[Item]]
    params: Mapping[str, str]
    limit: int | None
    """Number of items still wanted. None means all."""
    empty_pages: int = 0
    """Number of pages without items that were read last, one after the other."""

    @property
    def request(self) -> Request:
        size = _PAGE_SIZE if self.limit is None else min(_PAGE_SIZE, self.limit)
        return Request(path=self.path, params={**self.params, "limit": str(size)})

    def following(self, page: Page[Item]) -> Self | None:
        """Return the listing that continues after a page, or None if the page was the last one.

        Raises `Unavailable` if the registry sends empty pages without end.
        """
        left = None if self.limit is None else self.limit - len(page.data)
        # A page that leads to itself would be read forever. An empty page that leads on is valid: the
        # registry looked at some items, and none of them matched.
        stuck = page.last_id == self.params.get("after")
        if not page.has_more or page.last_id is None or stuck or left == 0:
            return None
        empty = 0 if page.data else self.empty_pages + 1
        if empty > _MAX_EMPTY_PAGES:
            raise Unavailable(f"the registry answered with {empty} empty pages of a list in a row")
        params = {**self.params, "after": page.last_id}
        return dataclasses.replace(self, params=params, limit=left, empty_pages=empty)


def listing_of(path: str, page: type[Page[Item]], limit: int | None, **filters: str | None) -> Listing[Item]:
    """Return the listing at a path. Filters that are None are left out. Raises `InvalidRequest` for a limit
    below 1.
    """
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}; accepted: from 1", param="limit")
    return Listing(path, page, given(**filters), limit)
