"""Finds out which API keys have changed. One look at Redis tells of all keys, in one round trip.

Processes also hear by the event stream that keys have changed. From then on they look again before they trust
what they hold, so that nothing is kept in memory for a key that has ended. Knows no key and no bucket.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.registry_api.keys.key_document import KeyDocument
from services.shared.bucket.layout import api_key_key
from services.shared.model.clock import Clock
from services.shared.view.shared_copies import SharedCopies, Told
from speaker_registry.errors import Unavailable

FRESH_SECONDS = 0.8
"""A look is good for this long."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Holds the answer of Redis to one look."""

    told: Told
    at: float
    """The look began at this time, by `Clock.since_boot`."""


class HeardChanges:
    """Knows the changes of keys that one process has heard of. Several threads may use it at once."""

    def __init__(self, copies: SharedCopies, clock: Clock) -> None:
        self._copies = copies
        self._clock = clock
        self.last: Heard | None = None
        """This holds the last look, or None if Redis did not answer it."""
        self.outdated_since = float("-inf")
        """What was known at this time is not trusted, because keys have changed since."""
        self._looking = threading.Lock()
        self._deaf_until = float("-inf")
        """Redis did not answer, and is not asked again before this time."""

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take note of an event, which may say that keys have changed."""
        if event["type"] == KeyDocument.UPDATED:
            self.events_missed()

    def events_missed(self) -> None:
        """Take note that keys may have changed."""
        self.outdated_since = self._clock.since_boot()

    @property
    def seconds_left(self) -> float:
        """Return for how long the last look is still good."""
        return self._seconds_left_of(self.last)

    def _seconds_left_of(self, look: Heard | None) -> float:
        if look is None or look.at <= self.outdated_since:
            return 0.0
        return max(0.0, look.at + FRESH_SECONDS - self._clock.since_boot())

    def listen(self, *, ahead_seconds: float = 0.0) -> None:
        """Ask Redis what has changed, unless the last look is good for longer than `ahead_seconds`.

        One thread does it at a time. If Redis does not answer, nothing is known, and nothing is raised.
        """
        with self._looking:
            began = self._clock.since_boot()
            if began < self._deaf_until or self.seconds_left > ahead_seconds:
                return
            try:
                told = self._copies.told(self.last.told if self.last else None)
            except Unavailable:
                self.last = None
                self._deaf_until = self._clock.since_boot() + FRESH_SECONDS
                return
            self.last = Heard(told, began)

    def confirm(self, key_id: str, *, generation: str, position: int) -> bool:
        """Return whether a key has not changed after this position, by a look that is still good."""
        last = self.last
        return (
            last is not None
            and self._seconds_left_of(last) > 0
            and last.told.generation == generation
            and last.told.numbers.get(api_key_key(key_id), 0) <= position
        )

    def tell_of(self, key_id: str) -> bool:
        """Return whether a key has changed since this process listens, as far as it has heard."""
        last = self.last
        return last is not None and api_key_key(key_id) in last.told.numbers
