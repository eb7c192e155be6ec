"""Caches counts for pages for a moment, so that many open pages cost little more than one."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from cachetools import TLRUCache

_KEPT_SECONDS = 10.0
_MAX_NAMESPACES = 256
_Counted = TypeVar("_Counted")


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
