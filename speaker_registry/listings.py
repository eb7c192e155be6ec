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
Item = TypeVar("Item", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Listing(Generic[Item]):
    """A list that is read page by page."""

    path: str
    page: type[Page[Item]]
    params: Mapping[str, str]
    limit: int | None
    """Number of items still wanted. None means all."""
    pages: int = 0
    """Number of pages that were read."""
    landmark: str | None = None
    """The cursor of one of these pages."""

    @property
    def request(self) -> Request:
        size = _PAGE_SIZE if self.limit is None else min(_PAGE_SIZE, self.limit)
        return Request(path=self.path, params={**self.params, "limit": str(size)})

    def following(self, page: Page[Item]) -> Self | None:
        """Return the listing that continues after a page, or None if the page was the last one.

        Raises `Unavailable` if the page leads back: the list would be read forever, and may not end as if it
        were whole.
        """
        left = None if self.limit is None else self.limit - len(page.data)
        if not page.has_more or left == 0:
            return None
        if page.last_id is None or page.last_id == self.landmark:
            raise Unavailable("the registry answered with a page of a list that leads back to one before it")
        pages = self.pages + 1
        # A landmark that moves on at each power of two is met again in a circle of any length (Brent 1980).
        landmark = self.landmark if pages & self.pages else page.last_id
        params = {**self.params, "after": page.last_id}
        return dataclasses.replace(self, params=params, limit=left, pages=pages, landmark=landmark)


def listing_of(path: str, page: type[Page[Item]], limit: int | None, **filters: str | None) -> Listing[Item]:
    """Return the listing at a path. Filters that are None are left out. Raises `InvalidRequest` for a limit
    below 1.
    """
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}; accepted: from 1", param="limit")
    return Listing(path, page, given(**filters), limit)
