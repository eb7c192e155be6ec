"""The changes of API keys that one process knows of: from Redis, from events, and from listings of the
bucket.

Redis records in which order keys changed, so documents in memory are valid for `FRESH_SECONDS` after Redis
was asked, which costs one round trip for all keys. After an event, Redis is asked before a key is trusted.
"""

import threading

from services.registry_api.keys.held_key import HeldKey, RedisAnswer
from services.shared.bucket.layout import api_key_key
from services.shared.model.clock import Clock
from services.shared.view.shared_copies import SharedCopies
from speaker_registry.errors import Unavailable

FRESH_SECONDS = 0.8
"""A held key is valid for this long after Redis or the bucket confirmed it."""


class KeyChanges:
    """Tells whether held keys are still valid. Safe to use from several threads."""

    def __init__(self, copies: SharedCopies, clock: Clock) -> None:
        self._copies, self._clock = copies, clock
        self.count = 0
        """Rises whenever a key may have ended."""
        self._counting = threading.Lock()
        self.last_answer: RedisAnswer | None = None
        """The last answer of Redis, or None if it did not answer."""
        self._asking = threading.Lock()
        self._asked_again_from = float("-inf")
        """Time before which Redis is not asked again, because it did not answer."""
        self._outdated_since = float("-inf")
        """Keys that were read before this time are not trusted without asking Redis, because keys have
        changed since.
        """
        self._noticed_at = float("-inf")
        """Time of the last listing or notice of a change. A document whose read began before may be older."""

    @property
    def seconds_left(self) -> float:
        """Return how many seconds the held keys are still valid since Redis was last asked."""
        answer = self.last_answer
        if answer is None or answer.at <= self._outdated_since:
            return 0.0
        return max(0.0, answer.at + FRESH_SECONDS - self._clock.since_boot())

    def ask(self, ahead_seconds: float = 0.0) -> None:
        """Ask Redis for changes, unless the held keys are valid for longer than `ahead_seconds`. Only one
        thread asks at a time.
        """
        with self._asking:
            began = self._clock.since_boot()
            if began < self._asked_again_from or self.seconds_left > ahead_seconds:
                return
            try:
                seen = self._copies.changes_since(self.last_answer.seen if self.last_answer else None)
            except Unavailable:
                self.last_answer = None
                self._asked_again_from = self._clock.since_boot() + FRESH_SECONDS
                return
            self.last_answer = RedisAnswer(seen, began)

    def is_valid(self, key_id: str, held: HeldKey) -> bool:
        """Return whether a held document can be trusted now."""
        answer = self.last_answer
        is_fresh = self._clock.since_boot() - held.read_at < held.good_for_seconds
        if is_fresh and held.read_at > self._outdated_since:
            return True
        if answer is None or not self.seconds_left:
            return False
        last_change = answer.seen.numbers.get(api_key_key(key_id), 0)
        return held.generation == answer.seen.generation and last_change <= held.position

    def has_recorded(self, key_id: str) -> bool:
        """Return whether Redis has recorded a change of a key."""
        answer = self.last_answer
        return answer is not None and api_key_key(key_id) in answer.seen.numbers

    def happened_since(self, began: float) -> bool:
        """Return whether a document whose read began at this time may be older than the last notice."""
        return began < self._noticed_at

    def mark_listed(self) -> None:
        """Note that the bucket was listed now."""
        self._noticed_at = self._clock.since_boot()

    def distrust(self) -> None:
        """Stop trusting the held keys without asking Redis, because keys may have changed."""
        self._outdated_since = self._noticed_at = self._clock.since_boot()
        self.add()

    def add(self) -> None:
        """Count a change after which a key may have ended."""
        with self._counting:
            self.count += 1
