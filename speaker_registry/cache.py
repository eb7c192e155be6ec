"""The in-memory cache of artifacts, bounded by bytes and by entries. It makes no requests.

There are two maps, because references move to other content and content never changes:

    (scope, speaker, reference, profile)  →  digest, and when the registry last confirmed it
    digest                                →  artifact

Both maps evict the least recently used entry first.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from speaker_registry.artifact import Artifact

ENTRY_OVERHEAD_BYTES = 4096
"""Memory that an artifact takes besides its file. tracemalloc measures 3.3 KB with two tensors and a usual
manifest.
"""
_REFERENCES_PER_ENTRY = 4
"""Several references, such as `alice`, `alice@3` and `alice@prod`, may lead to one artifact."""


class Key(NamedTuple):
    """Identifies a request for an artifact."""

    scope: str
    """Identifies registry, API key and namespace. Clients that share a cache must not see each other's
    artifacts, because their keys may have different rights.
    """
    speaker: str
    reference: int | str
    profile: str


@dataclass(frozen=True, slots=True)
class CacheStats:
    hits: int
    """Number of artifacts that came from memory, with or without a request to confirm them."""
    misses: int
    """Number of artifacts that had to be transferred."""
    bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class _Confirmation:
    """The registry's last answer to a request: the digest, and when the registry was asked."""

    digest: str
    confirmed_at: float


class ArtifactCache:
    """A bounded in-memory cache of artifacts. It can be shared between threads and between clients.

    Args:
        max_bytes: Maximum total size. An artifact counts with its file and 4,096 bytes of overhead.
        max_entries: Maximum number of artifacts.
        clock: Replaces `time.monotonic`, for tests.
    """

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
        """Return the time of the clock that ages are measured with."""
        return self._clock()

    def held(self, key: Key) -> Artifact | None:
        """Return the artifact last known for the key, whatever its age. This changes no statistics."""
        with self._lock:
            return self._find(key, float("inf"))

    def fresh(self, key: Key, max_age_seconds: float) -> Artifact | None:
        """Return the artifact if the registry confirmed it within `max_age_seconds`, and count a hit."""
        with self._lock:
            artifact = self._find(key, max_age_seconds)
            self._hits += artifact is not None
            return artifact

    def confirm(self, key: Key, artifact: Artifact, asked_at: float) -> None:
        """Record that the registry confirmed a cached artifact, and count a hit.

        Args:
            asked_at: Time of the clock before the request was sent.
        """
        with self._lock:
            self._hits += 1
            self._store(key, artifact, asked_at)

    def add(self, key: Key, artifact: Artifact, asked_at: float) -> None:
        """Add a transferred artifact and count a miss. An artifact that is larger than the cache is not
        kept.
        """
        with self._lock:
            self._misses += 1
            self._store(key, artifact, asked_at)

    def forget(self, key: Key) -> None:
        """Drop an artifact that the registry no longer serves, under every reference that leads to the same
        bytes.
        """
        with self._lock:
            confirmation = self._confirmations.pop(key, None)
            if confirmation:
                self._drop(confirmation.digest)

    def forget_speaker(self, scope: str, speaker: str) -> None:
        """Drop all artifacts of a voice that was deleted."""
        with self._lock:
            for key in [key for key in self._confirmations if (key.scope, key.speaker) == (scope, speaker)]:
                self._drop(self._confirmations.pop(key).digest)

    def clear(self) -> None:
        """Drop all artifacts. The statistics of hits and misses stay."""
        with self._lock:
            self._artifacts.clear()
            self._confirmations.clear()
            self._bytes = 0

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(self._hits, self._misses, self._bytes, len(self._artifacts))

    # The methods below are called with the lock held.

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
        # If two answers arrive in the wrong order, the one that was requested later counts.
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
