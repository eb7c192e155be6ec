"""Documents that this process has parsed, so that an unchanged one is neither sent nor parsed again."""

from collections import OrderedDict
from threading import Lock

from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId

_MAX_BYTES = 64 * 1024 * 1024


class ParsedDocuments:
    """Keeps the documents that were used last, by speaker and ETag. Thread-safe.

    Args:
        max_bytes: the documents that are kept take no more than this, measured as JSON.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()
        self._kept: OrderedDict[SpeakerId, tuple[str, SpeakerDocument, int]] = OrderedDict()

    def etag(self, speaker_id: SpeakerId) -> str | None:
        """Return the ETag of the document that is kept of a speaker."""
        with self._lock:
            kept = self._kept.get(speaker_id)
            return kept[0] if kept else None

    def get(self, speaker_id: SpeakerId, etag: str) -> SpeakerDocument | None:
        """Return the document with this ETag, if it is the one that is kept."""
        with self._lock:
            kept = self._kept.get(speaker_id)
            if kept is None or kept[0] != etag:
                return None
            self._kept.move_to_end(speaker_id)
            return kept[1]

    def put(self, speaker_id: SpeakerId, etag: str, document: SpeakerDocument, size: int) -> None:
        """Keep a document in place of the one that was kept of the speaker."""
        with self._lock:
            before = self._kept.pop(speaker_id, None)
            self._bytes += size - (before[2] if before else 0)
            self._kept[speaker_id] = (etag, document, size)
            while self._bytes > self._max_bytes:
                self._bytes -= self._kept.popitem(last=False)[1][2]


class MissingSpeakers:
    """Remembers for some seconds that the bucket has no such speaker. Thread-safe.

    What was remembered in one generation of the view says nothing in the next: until then a speaker that was
    registered elsewhere was found in the view, and now the view may lack it.

    Args:
        seconds: a speaker is asked for again after this long.
        most: no more speakers than this are remembered.
    """

    def __init__(self, seconds: float = 5.0, most: int = 10_000) -> None:
        self._seconds = seconds
        self._most = most
        self._lock = Lock()
        self._since: OrderedDict[SpeakerId, tuple[str | None, float]] = OrderedDict()

    def put(self, speaker_id: SpeakerId, generation: str | None, now: float) -> None:
        """Remember a speaker. `generation` is that of the view which lacks it; None if no view was read."""
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
