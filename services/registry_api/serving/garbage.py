"""Keeps garbage collections short, however much the process keeps in memory.

A full collection scans every object, and no thread runs meanwhile: with 10,000 cached documents it stops all
requests for a third of a second. Objects that survived a full collection are therefore frozen, so that the
next one scans only what is new. Reference counts free frozen objects as always. Only a reference cycle that
becomes garbage after it was frozen stays in memory, until the number of frozen objects has doubled. Then
everything is scanned once.
"""

import gc
from collections.abc import Callable

_THRESHOLDS = (700, 10, 3)
_SCANNED = 700 * 10 * 3
"""About the number of new objects that a full collection scans, which takes 20 ms."""


class Survivors:
    """A callback of the garbage collector that freezes the objects that survive a full collection.

    Args:
        count: counts the frozen objects. It takes milliseconds, so it is called rarely.
    """

    def __init__(self, count: Callable[[], int] = gc.get_freeze_count) -> None:
        self._count = count
        self._until_count = 0
        self._scans_all = False
        self._rest()

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._begin()
        else:
            gc.freeze()
            if self._scans_all:
                self._rest()

    def _begin(self) -> None:
        self._until_count -= 1
        if self._until_count > 0:
            return
        self._scans_all = self._count() > 2 * self._frozen
        if self._scans_all:
            gc.unfreeze()
        else:
            self._until_count = self._pause()

    def _rest(self) -> None:
        self._frozen = self._count()
        self._scans_all = False
        self._until_count = self._pause()

    def _pause(self) -> int:
        """Return after how many full collections the number of frozen objects can have doubled."""
        return max(1, self._frozen // _SCANNED)


def keep_collections_short() -> None:
    """Freeze all existing objects, and from now on all objects that survive a full collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(Survivors())
