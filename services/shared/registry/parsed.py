"""Caches the documents that this process has parsed. An unchanged document is neither fetched nor parsed
again.
"""

from collections.abc import Callable
from threading import Lock

from cachetools import LRUCache, TTLCache

from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId

_MAX_BYTES = 16 * 1024 * 1024
"""Parsed documents take up to eight times the memory of their JSON, so at most 128 MiB."""
_NOT_MISSING = object()
"""Stands for the generation of a speaker that is not known to be missing. None stands for no view."""


class ParsedDocuments:
    """A cache of the most recently used documents, by speaker and ETag. Thread-safe.

    Args:
        max_bytes: the largest total size of the cached documents, measured as JSON.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._lock = Lock()
        self._kept: LRUCache[SpeakerId, tuple[str, SpeakerDocument, int]] = LRUCache(
            max_bytes, getsizeof=lambda kept: kept[2]
        )

    def etag(self, speaker_id: SpeakerId) -> str | None:
        """Return the ETag of the cached document of a speaker, or None if there is none."""
        with self._lock:
            kept = self._kept.get(speaker_id)
            return kept[0] if kept else None

    def get(self, speaker_id: SpeakerId, etag: str) -> SpeakerDocument | None:
        """Return the cached document of a speaker if it has this ETag, else None."""
        with self._lock:
            kept = self._kept.get(speaker_id)
            return kept[1] if kept and kept[0] == etag else None

    def put(self, speaker_id: SpeakerId, etag: str, document: SpeakerDocument, size: int) -> None:
        """Cache a document. It replaces the cached document of the same speaker."""
        with self._lock:
            self._kept[speaker_id] = (etag, document, size)


class MissingSpeakers:
    """Remembers for some seconds which speakers the bucket does not have. Thread-safe.

    An entry is valid only in the generation of the view in which it was made. In the next generation, the
    view may lack a speaker that another process has registered meanwhile.

    Args:
        monotonic: the clock, in seconds.
        seconds: the lifetime of an entry.
        most: the largest number of speakers that are remembered.
    """

    def __init__(self, monotonic: Callable[[], float], *, seconds: float = 5.0, most: int = 10_000) -> None:
        self._lock = Lock()
        self._generations: TTLCache[SpeakerId, str | None] = TTLCache(most, seconds, monotonic)

    def put(self, speaker_id: SpeakerId, generation: str | None) -> None:
        """Remember that a speaker is missing. `generation` is that of the view that lacks the speaker, or
        None if no view was read.
        """
        with self._lock:
            self._generations[speaker_id] = generation

    def holds(self, speaker_id: SpeakerId, generation: str | None) -> bool:
        with self._lock:
            return self._generations.get(speaker_id, _NOT_MISSING) == generation

    def drop(self, speaker_id: SpeakerId) -> None:
        with self._lock:
            self._generations.pop(speaker_id, None)
