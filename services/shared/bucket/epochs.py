"""Records in the bucket which indexes were begun for it, on any Redis.

    _epochs/{epoch:012d}    an index of this epoch was begun

A Redis does not know what it has missed. If the registry used another Redis for a while, because an address
or a setting led there, the first Redis still holds an index that claims to be the latest. Therefore the
bucket records each index before it is used, and an index that is not the highest one there is begun anew.
This module does not know Redis.
"""

from services.shared.bucket.facts import commit
from services.shared.bucket.keys import EPOCHS_FOLDER, EpochKey, parse_key
from services.shared.bucket.store import Store
from services.shared.model.clock import Clock
from speaker_registry.errors import Unavailable

LOOK_SECONDS = 10.0
"""The minimum time between two listings. Two Redis in use at once may go unnoticed for this long."""
_AHEAD_SECONDS = 30 * 86_400
"""Epochs follow the clock. An epoch that is further ahead than this was not written by a process of ours."""


class Epochs:
    """The epochs of one bucket. Safe to use from several threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: int | None = None
        self._looked_at = 0.0

    def known(self) -> int:
        """Return the highest epoch that this process knows, or 0 if there is none. The first call lists them.

        Raises `Unavailable` if the bucket has never been reached.
        """
        if self._known is None:
            self._look()
        return self._known or 0

    def look(self) -> None:
        """List the epochs again, unless that was done within `LOOK_SECONDS`.

        Raises `Unavailable` if the bucket has never been reached.
        """
        if self._known is not None and self._clock.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        try:
            self._look()
        except Unavailable:
            if self._known is None:
                raise

    def note(self, epoch: int) -> None:
        """Record in the bucket that an index of this epoch was begun.

        Call this before the index is used, or a server with an older index could pass for the latest. Raises
        `Unavailable`.
        """
        if epoch > self.known():
            commit(self._store, EpochKey(epoch))
            self._known = epoch

    def sweep(self) -> None:
        """Delete all epochs but the highest from the bucket. Raises `Unavailable`."""
        listed = self._look()
        self._store.delete([str(EpochKey(epoch)) for epoch in listed if epoch < self.known()])

    def _look(self) -> list[int]:
        """Return all epochs in the bucket, including any that no process of ours wrote."""
        self._looked_at = self._clock.monotonic()
        latest = int(self._clock.now() + _AHEAD_SECONDS) * 100
        keys = (parse_key(stored.key) for stored in self._store.list(EPOCHS_FOLDER).objects)
        listed = [key.epoch for key in keys if isinstance(key, EpochKey)]
        self._known = max([self._known or 0, *(epoch for epoch in listed if epoch <= latest)])
        return listed
