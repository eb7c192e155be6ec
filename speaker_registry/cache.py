"""The cache of artifacts in memory, bounded by bytes and by entries. It makes no requests.

There are two maps, because references move to other content and content never changes:

    (scope, speaker, reference, profile)  →  digest, and when the registry last confirmed it
    digest                                →  artifact

Both maps evict the least recently used entry first. `disk_cache` keeps artifacts in a directory,
which several processes can share. It is only imported if a directory is given.
"""

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from speaker_registry.artifact import Artifact
from speaker_registry.forks import renew_after_fork
from speaker_registry.names import slug_of_voice
from speaker_registry.validation import is_from_zero, shortened

if TYPE_CHECKING:
    from speaker_registry.disk_cache import DiskCache

ENTRY_OVERHEAD_BYTES = 4096
"""Memory that an artifact takes besides its file. tracemalloc measures 3.3 KB with two tensors and a usual
manifest.
"""
_REFERENCES_PER_ENTRY = 4
"""Several references, such as `alice`, `alice@3` and `alice@prod`, may lead to one artifact."""
_MARKED_VOICES = 10_000
"""Maximum number of voices for which the cache remembers when they last changed, or were gone."""
_Marks = OrderedDict[tuple[str, str | None], float]
"""Maps scope and `Key.voice` to a time of the clock. None stands for all voices of the scope."""


class Key(NamedTuple):
    """Identifies a request for an artifact."""

    scope: str
    """Identifies registry, API key and namespace. Clients that share a cache must not see each other's
    artifacts, because their keys may have different rights.
    """
    speaker: str
    """The key of the voice's name, or the id of the voice."""
    reference: int | str
    profile: str

    @property
    def voice(self) -> str:
        """Groups all requests that may mean the same voice: by its name, by its id, and by ids of earlier
        voices of that name.
        """
        return slug_of_voice(self.speaker)

    @property
    def target(self) -> str:
        """Speaker, reference and profile joined into one text, which is different for every request."""
        return f"{self.speaker}\0{self.reference}\0{self.profile}"


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counters of a cache since it was made, and its size now."""

    hits: int
    """Number of artifacts that came from memory, with or without a request to confirm them. This includes
    artifacts that were read from the directory into memory before.
    """
    misses: int
    """Number of artifacts that had to be transferred."""
    bytes: int
    """Size of the artifacts in memory, with 4,096 bytes of overhead each."""
    entries: int
    """Number of artifacts in memory."""
    disk_hits: int = 0
    """Number of artifacts that were read from the directory into memory."""
    revalidations: int = 0
    """Number of hits that the registry confirmed by answering that nothing has changed."""
    stale_answers: int = 0
    """Number of hits that were returned because the registry did not answer."""
    errors: int = 0
    """Number of fetches to which the registry did not answer."""
    disk_errors: int = 0
    """Number of times that the directory could not be used, or had a damaged file, which was removed."""
    oldest_answer_seconds: float = 0.0
    """Greatest age of an artifact that was returned without an answer of the registry, in seconds."""


@dataclass(frozen=True, slots=True)
class _Confirmation:
    """The registry's last answer to a request: the digest, and when the registry was asked."""

    digest: str
    confirmed_at: float


class ArtifactCache:
    """A bounded cache of artifacts, in memory and optionally in a directory.

    It can be shared between threads and between clients. The directory can be shared between processes, which
    may be killed at any time. A fetch never fails because of the directory.

    Args:
        directory: Directory that keeps artifacts beyond the end of the process. It is created with mode 0700.
            None keeps them in memory only. Not available on Windows.
        max_disk_bytes: Maximum size of the directory. Each file counts with 4,096 bytes of overhead, and an
            artifact larger than a tenth of this is not kept there.
        max_bytes: Maximum total size. An artifact counts with its file and 4,096 bytes of overhead.
        max_entries: Maximum number of artifacts.
        clock: Replaces `time.monotonic`, for tests.

    Raises:
        OSError: The directory cannot be created.
        ValueError: The directory is a symbolic link, or does not belong to this user. A maximum is not a
            number from 0 on.
    """

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        max_disk_bytes: int = 4 * 1024**3,
        max_bytes: int = 512 * 1024**2,
        max_entries: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = {"max_disk_bytes": max_disk_bytes, "max_bytes": max_bytes, "max_entries": max_entries}
        for name, limit in limits.items():
            if not is_from_zero(limit):
                raise ValueError(f"{name} is {shortened(limit)}; accepted: a number from 0")
        self.max_bytes, self.max_entries = max_bytes, max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._artifacts: OrderedDict[str, Artifact] = OrderedDict()
        self._confirmations: OrderedDict[Key, _Confirmation] = OrderedDict()
        self._bytes = 0
        self._hits = self._misses = self._disk_hits = self._disk_errors = 0
        self._revalidations = self._stale_answers = self._errors = 0
        self._oldest_answer_seconds = 0.0
        self._expired: _Marks = OrderedDict()
        self._forgotten: _Marks = OrderedDict()
        """When the registry said that a voice, or an artifact of it, was gone. An answer to an earlier
        question may arrive later, and must not bring it back.
        """
        self._disk: DiskCache | None = None
        if directory is not None:
            from speaker_registry import disk_cache  # noqa: PLC0415  needs POSIX

            self._disk = disk_cache.DiskCache(directory, max_disk_bytes)
        renew_after_fork(self, ArtifactCache._renew)

    def _renew(self) -> None:
        is_half_changed = self._lock.locked()  # by a thread that exists only in the parent
        self._lock = threading.Lock()
        if is_half_changed:
            self.clear()

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
            return self._find(key)

    @property
    def on_disk(self) -> bool:
        """True if the cache has a directory, in which case some of its methods block for milliseconds."""
        return self._disk is not None

    def fresh(self, key: Key, max_age_seconds: float) -> Artifact | None:
        """Return the artifact if the registry confirmed it within `max_age_seconds`, and count a hit."""
        with self._lock:
            if self._expired and self._confirmed_at(key) < _last_mark(self._expired, key):
                return None
            return self._answer(key, max_age_seconds)

    def stale(self, key: Key, max_age_seconds: float) -> Artifact | None:
        """Return the artifact if the registry confirmed it within `max_age_seconds`, for use without an
        answer. Returns None if its voice is known to have changed since.
        """
        with self._lock:
            if self._confirmed_at(key) < _marked_at(self._expired, key.scope, key.voice):
                return None
            artifact = self._answer(key, max_age_seconds)
            self._stale_answers += artifact is not None
            return artifact

    def expire(self, scope: str, speaker: str | None) -> None:
        """Keep `fresh` from returning artifacts of a voice, by its name or its id, until the registry has
        confirmed them again. If `speaker` is None, this applies to all voices.
        """
        with self._lock:
            self._mark(self._expired, scope, None if speaker is None else slug_of_voice(speaker))

    def recall(self, key: Key) -> None:
        """Read an artifact from the directory into memory if another process confirmed it later than this
        one.
        """
        if self._disk is None:
            return
        with self._disk_errors_counted():
            ref = self._disk.ref(key.scope, key.voice, key.target)
            if ref is None:
                return
            asked_at = self._clock() - ref.age_seconds()
            with self._lock:
                known = self._find(key)
                if known is not None and self._confirmed_at(key) >= asked_at:
                    return
                in_memory = self._artifacts.get(ref.digest)
            artifact = self._disk.artifact(ref) if in_memory is None else in_memory
            if artifact is None:
                return
            with self._lock:
                if not self._is_overtaken(key, asked_at):
                    self._disk_hits += in_memory is None
                    self._store(key, artifact, asked_at)

    def count_error(self) -> None:
        """Count a fetch to which the registry did not answer."""
        with self._lock:
            self._errors += 1

    def confirm(self, key: Key, artifact: Artifact, asked_at: float) -> None:
        """Record that the registry confirmed a cached artifact, and count a hit.

        Args:
            asked_at: Time of the clock before the request was sent.
        """
        with self._lock:
            self._hits += 1
            self._revalidations += 1
        self._keep(key, artifact, asked_at, None)

    def add(self, key: Key, artifact: Artifact, asked_at: float, data: bytes | None = None) -> None:
        """Add a transferred artifact and count a miss. An artifact that is larger than the cache is not
        kept.

        Args:
            data: The artifact's file, for the directory.
        """
        with self._lock:
            self._misses += 1
        self._keep(key, artifact, asked_at, data)

    def forget(self, key: Key) -> None:
        """Drop an artifact that the registry no longer serves, under every reference that leads to the same
        bytes.
        """
        with self._lock:
            self._mark(self._forgotten, key.scope, key.voice)
            confirmation = self._confirmations.pop(key, None)
            if confirmation:
                self._drop(confirmation.digest)
        self._forget_on_disk(key.scope, key.voice, key.target)

    def forget_speaker(self, scope: str, speaker: str) -> None:
        """Drop all artifacts of a voice that was deleted, requested by its name or its id.

        If an id is dead but its name was registered again, the artifacts of the new voice are dropped too,
        and the next fetch transfers them again. The directory cannot tell the two apart.
        """
        voice = slug_of_voice(speaker)
        with self._lock:
            self._mark(self._forgotten, scope, voice)
            for key in [key for key in self._confirmations if (key.scope, key.voice) == (scope, voice)]:
                self._drop(self._confirmations.pop(key).digest)
        self._forget_on_disk(scope, voice)

    def clear(self) -> None:
        """Drop all artifacts from memory. The directory and the statistics of hits and misses stay."""
        with self._lock:
            self._artifacts.clear()
            self._confirmations.clear()
            self._bytes = 0

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(
                hits=self._hits,
                misses=self._misses,
                bytes=self._bytes,
                entries=len(self._artifacts),
                disk_hits=self._disk_hits,
                revalidations=self._revalidations,
                stale_answers=self._stale_answers,
                errors=self._errors,
                disk_errors=self._disk_errors,
                oldest_answer_seconds=self._oldest_answer_seconds,
            )

    def _keep(self, key: Key, artifact: Artifact, asked_at: float, data: bytes | None) -> None:
        """Record what the registry said, unless it has said since that the voice is gone."""
        with self._lock:
            if self._is_overtaken(key, asked_at):
                return
            self._store(key, artifact, asked_at)
        if self._disk is None:
            return
        from speaker_registry.disk_cache import Ref  # noqa: PLC0415  needs POSIX

        ref = Ref.asked(artifact.digest, artifact.size, self._clock() - asked_at)
        with self._disk_errors_counted():
            self._disk.store(key.scope, key.voice, key.target, ref, data)
        with self._lock:
            is_gone = self._is_overtaken(key, asked_at)
        if is_gone:  # another thread was told while this one wrote, and found nothing to remove yet
            self._forget_on_disk(key.scope, key.voice, key.target)

    def _forget_on_disk(self, scope: str, voice: str, target: str | None = None) -> None:
        if self._disk is not None:
            with self._disk_errors_counted():
                self._disk.forget(scope, voice, target)

    @contextlib.contextmanager
    def _disk_errors_counted(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            with self._lock:
                self._disk_errors += 1

    # The methods below are called with the lock held.

    def _confirmed_at(self, key: Key) -> float:
        confirmation = self._confirmations.get(key)
        return float("-inf") if confirmation is None else confirmation.confirmed_at

    def _mark(self, marks: _Marks, scope: str, voice: str | None) -> None:
        """Note the time for a voice, or for all of a scope."""
        marks.pop((scope, voice), None)
        marks[scope, voice] = self._clock()
        while len(marks) > _MARKED_VOICES:
            (old_scope, _), at = marks.popitem(last=False)
            # A voice that is not remembered any more shares the mark of its whole scope.
            marks[old_scope, None] = max(at, _marked_at(marks, old_scope, None))

    def _is_overtaken(self, key: Key, asked_at: float) -> bool:
        """Return whether the registry has said since that the voice is gone."""
        return bool(self._forgotten) and asked_at < _last_mark(self._forgotten, key)

    def _answer(self, key: Key, max_age_seconds: float) -> Artifact | None:
        """Return an artifact without asking the registry, and count a hit and its age."""
        age = self._clock() - self._confirmed_at(key)
        artifact = self._find(key) if age <= max_age_seconds and age != float("inf") else None
        if artifact is not None:
            self._hits += 1
            self._oldest_answer_seconds = max(age, self._oldest_answer_seconds)
        return artifact

    def _find(self, key: Key) -> Artifact | None:
        confirmation = self._confirmations.get(key)
        if confirmation is None:
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


def _marked_at(marks: _Marks, scope: str, voice: str | None) -> float:
    return marks.get((scope, voice), float("-inf"))


def _last_mark(marks: _Marks, key: Key) -> float:
    """Return the time that is noted for a voice or for all voices of its scope, whichever is later."""
    return max(_marked_at(marks, key.scope, None), _marked_at(marks, key.scope, key.voice))
