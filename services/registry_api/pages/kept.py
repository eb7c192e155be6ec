"""Caches counts and live regions for a moment, so that many open pages cost little more than one."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cachetools import TLRUCache, TTLCache
from fastapi import Request

from services.registry_api.pages.rendering import own_address

_KEPT_SECONDS = 10.0
_MAX_NAMESPACES = 256
_REGION_SECONDS = 2.0
_REGION_BYTES = 8 * 1024**2
_Counted = TypeVar("_Counted")
_Key = tuple[str, str, frozenset[str]]


class Kept(Generic[_Counted]):
    """A cache of the last result for each namespace. Safe to use from several threads.

    Args:
        count: returns the result for a namespace.
        kept_seconds: returns for how long a result is kept.
    """

    def __init__(
        self,
        count: Callable[[str], _Counted],
        kept_seconds: Callable[[_Counted], float] = lambda _: _KEPT_SECONDS,
    ) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._results: TLRUCache[str, _Counted] = TLRUCache(
            _MAX_NAMESPACES, lambda _, result, now: now + kept_seconds(result), time.monotonic
        )

    def of(self, namespace: str) -> _Counted:
        """Return the cached result for a namespace, or count anew."""
        with self._lock:  # callers that wait meanwhile get the same result
            result = self._results.get(namespace)
            if result is None:
                result = self._results[namespace] = self._count(namespace)
            return result


@dataclass(frozen=True, slots=True)
class KeptRegion:
    """A rendered region, and the route that rendered it."""

    text: str
    route: Any

    def __len__(self) -> int:
        return len(self.text)


class LiveRegions:
    """A cache of recently rendered regions. Safe to use from several threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._kept: TTLCache[_Key, KeptRegion] = TTLCache(
            _REGION_BYTES, _REGION_SECONDS, monotonic, getsizeof=len
        )

    def find(self, request: Request) -> KeptRegion | None:
        with self._lock:
            return self._kept.get(_key_of(request))

    def keep(self, request: Request, text: str) -> None:
        kept = KeptRegion(text, request.scope["route"])
        with self._lock, suppress(ValueError):  # it is larger than the cache
            self._kept[_key_of(request)] = kept


def _key_of(request: Request) -> _Key:
    return own_address(request), request.scope["namespace"], request.scope["caller"].scopes
