"""Caches the documents that this process has parsed. An unchanged document is neither fetched nor parsed
again.
"""

from collections import OrderedDict
from threading import Lock

from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId

_MAX_BYTES = 16 * 1024 * 1024
"""Parsed documents take up to eight times the memory of their JSON, so at most 128 MiB."""


class ParsedDocuments:
    """A cache of the most recently used documents, by speaker and ETag. Thread-safe.

    Args:
        max_bytes: the largest total size of the cached documents, measured as JSON.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()
        self._kept: OrderedDict[SpeakerId, tuple[str, SpeakerDocument, int]] = OrderedDict()

    def etag(self, speaker_id: SpeakerId) -> str | None:
        """Return the ETag of the cached document of a speaker, or None if there is none."""
        with self._lock:
            kept = self._kept.get(speaker_id)
            return kept[0] if kept else None

    def get(self, speaker_id: SpeakerId, etag: str) -> SpeakerDocument | None:
        """Return the cached document of a speaker if it has this ETag, else None."""
        with self._lock:
            kept = self._kept.get(speaker_id)
            if kept is None or kept[0] != etag:
                return None
            self._kept.move_to_end(speaker_id)
            return kept[1]

    def put(self, speaker_id: SpeakerId, etag: str, document: SpeakerDocument, size: int) -> None:
        """Cache a document. It replaces the cached document of the same speaker."""
        with self._lock:
            before = self._kept.pop(speaker_id, None)
            self._bytes += size - (before[2] if before else 0)
            self._kept[speaker_id] = (etag, document, size)
            while self._bytes > self._max_bytes:
                self._bytes -= self._kept.popitem(last=False)[1][2]


class MissingSpeakers:
    """Remembers for some seconds which speakers the bucket does not have. Thread-safe.

    An entry is valid only in the generation of the view in which it was made. In the next generation, the
    view may lack a speaker that another process has registered meanwhile.

    Args:
        seconds: the lifetime of an entry.
        most: the largest number of speakers that are remembered.
    """

    def __init__(self, seconds: float = 5.0, most: int = 10_000) -> None:
        self._seconds = seconds
        self._most = most
        self._lock = Lock()
        self._since: OrderedDict[SpeakerId, tuple[str | None, float]] = OrderedDict()

    def put(self, speaker_id: SpeakerId, generation: str | None, now: float) -> None:
        """Remember that a speaker is missing. `generation` is that of the view that lacks the speaker, or
        None if no view was read.
        """
        with self._lock:
            self._since[speaker_id] = (generation, now)
            self._since.move_to_end(speaker_id)
            if len(self._since) > self._most:
                self._since.popitem(last=False)

    def holds(self, speaker_id: SpeakerId, generation: str | None, now: float) -> bool:
        with self._lock:
            known, since = self._since.get(speaker_id, (None, float("-inf")))
            return known == generation and now - since < self._seconds

    def drop(self, speaker_id: SpeakerId) -> None:
        with self._lock:
            self._since.pop(speaker_id, None)
