"""The artifacts that a process holds in memory, bounded by bytes and by entries. Knows no network, no route.

Two maps, because names move and content does not:

    (scope, speaker, reference, profile)  →  digest, and when the registry last said so
    digest                                →  artifact

Of both, what was used least recently goes first.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from speaker_registry.artifact import Artifact

ENTRY_OVERHEAD_BYTES = 4096
"""What an artifact takes besides its file: 3.3 KB by tracemalloc with two tensors and ordinary facts."""
_REFERENCES_PER_ENTRY = 4
"""`alice`, `alice@3` and `alice@prod` may all lead to one artifact."""


class Key(NamedTuple):
    """What a caller asked for."""

    scope: str
    """Registry and API key. One cache may serve several clients; what one may see, another may not."""
    speaker: str
    reference: int | str
    profile: str


@dataclass(frozen=True, slots=True)
class CacheStats:
    hits: int
    """Answers whose bytes came from memory, asked for again or not."""
    misses: int
    """Artifacts that had to be transferred."""
    bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class _Confirmation:
    digest: str
    confirmed_at: float


class ArtifactCache:
    """A bounded memory of artifacts. Safe to share between threads and between clients."""

    def __init__(
        self,
        *,
        max_bytes: int = 512 * 1024**2,
        max_entries: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes, self.max_entries = max_bytes, max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._artifacts: OrderedDict[str, Artifact] = OrderedDict()
        self._confirmations: OrderedDict[Key, _Confirmation] = OrderedDict()
        self._bytes = 0
        self._hits = self._misses = 0

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"<ArtifactCache {stats.entries} of {self.max_entries}, {stats.bytes} of {self.max_bytes} bytes>"
        )

    def now(self) -> float:
        """The clock that ages are measured with."""
        return self._clock()

    def held(self, key: Key) -> Artifact | None:
        """What was last known under the key, however long ago. Counts nothing."""
        with self._lock:
            return self._find(key, float("inf"))

    def fresh(self, key: Key, max_age_seconds: float) -> Artifact | None:
        """What the registry confirmed at most so long ago. Counts a hit if there is one."""
        with self._lock:
            artifact = self._find(key, max_age_seconds)
            self._hits += artifact is not None
            return artifact

    def confirm(self, key: Key, artifact: Artifact, asked_at: float) -> None:
        """The registry said that what we hold is still right. `asked_at`: the clock before the question."""
        with self._lock:
            self._hits += 1
            self._store(key, artifact, asked_at)

    def add(self, key: Key, artifact: Artifact, asked_at: float) -> None:
        """A transferred artifact. One that is larger than the whole cache is not kept."""
        with self._lock:
            self._misses += 1
            self._store(key, artifact, asked_at)

    def forget(self, key: Key) -> None:
        """The registry gives this out no more: neither do we, under any name that leads to the same bytes."""
        with self._lock:
            confirmation = self._confirmations.pop(key, None)
            if confirmation:
                self._drop(confirmation.digest)

    def forget_speaker(self, scope: str, speaker: str) -> None:
        """The voice is gone: drop everything of it."""
        with self._lock:
            for key in [key for key in self._confirmations if (key.scope, key.speaker) == (scope, speaker)]:
                self._drop(self._confirmations.pop(key).digest)

    def clear(self) -> None:
        with self._lock:
            self._artifacts.clear()
            self._confirmations.clear()
            self._bytes = 0

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(self._hits, self._misses, self._bytes, len(self._artifacts))

    # Below: with the lock held.

    def _find(self, key: Key, max_age_seconds: float) -> Artifact | None:
        confirmation = self._confirmations.get(key)
        if confirmation is None or self._clock() - confirmation.confirmed_at > max_age_seconds:
            return None
        artifact = self._artifacts.get(confirmation.digest)
        if artifact is not None:
            self._artifacts.move_to_end(confirmation.digest)
            self._confirmations.move_to_end(key)
        return artifact

    def _store(self, key: Key, artifact: Artifact, asked_at: float) -> None:
        cost = _cost(artifact)
        if cost > self.max_bytes:
            return
        self._drop(artifact.digest)
        self._artifacts[artifact.digest] = artifact
        self._bytes += cost
        while self._bytes > self.max_bytes or len(self._artifacts) > self.max_entries:
            self._drop(next(iter(self._artifacts)))
        before = self._confirmations.get(key)
        # Of two answers that crossed, the one asked for later knows more.
        if before is None or before.confirmed_at <= asked_at:
            self._confirmations[key] = _Confirmation(artifact.digest, asked_at)
        self._confirmations.move_to_end(key)
        while len(self._confirmations) > self.max_entries * _REFERENCES_PER_ENTRY:
            self._confirmations.popitem(last=False)

    def _drop(self, digest: str) -> None:
        artifact = self._artifacts.pop(digest, None)
        if artifact is not None:
            self._bytes -= _cost(artifact)


def _cost(artifact: Artifact) -> int:
    return artifact.size + ENTRY_OVERHEAD_BYTES
