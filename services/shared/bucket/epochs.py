"""Which indexes were begun for a bucket, wherever that was.

    _epochs/{epoch:012d}    an index of this epoch was begun

A Redis does not know what it has missed. One that the registry worked without for a while, because an address
or a setting led to another one, holds an index that says of itself that it is the last. So the bucket knows
each index before it is used, and an index that is not the highest one there is begun anew. Knows no Redis.
"""

from services.shared.bucket.facts import commit
from services.shared.bucket.keys import EPOCHS_FOLDER, EpochKey, parse_key
from services.shared.bucket.store import Store
from services.shared.model.clock import Clock
from speaker_registry.errors import Unavailable

LOOK_SECONDS = 10.0
"""Between two listings, at least. So long two Redis may be used at the same time without being noticed."""
_AHEAD_SECONDS = 30 * 86_400
"""Epochs follow clocks. One that is further ahead than that is no process's of ours."""


class Epochs:
    """Of one bucket. For all threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: int | None = None
        self._looked_at = 0.0

    def known(self) -> int:
        """The highest one that this process knows of; 0: there is none. Looks for it the first time.

        Raises `Unavailable` if the bucket has never been reached.
        """
        if self._known is None:
            self._look()
        return self._known or 0

    def look(self) -> None:
        """Look whether there is a higher one, unless that was done within `LOOK_SECONDS`.

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
        """Have the bucket know an index before it is used. Raises `Unavailable`."""
        if epoch > self.known():
            commit(self._store, EpochKey(epoch))
            self._known = epoch

    def sweep(self) -> None:
        """Forget all but the highest. Raises `Unavailable`."""
        listed = self._look()
        self._store.delete([str(EpochKey(epoch)) for epoch in listed if epoch < self.known()])

    def _look(self) -> list[int]:
        """Returns all that the bucket has, those among them that no process of ours put."""
        self._looked_at = self._clock.monotonic()
        latest = int(self._clock.now() + _AHEAD_SECONDS) * 100
        keys = (parse_key(stored.key) for stored in self._store.list(EPOCHS_FOLDER).objects)
        listed = [key.epoch for key in keys if isinstance(key, EpochKey)]
        self._known = max([self._known or 0, *(epoch for epoch in listed if epoch <= latest)])
        return listed
