"""Prepared answers: the last answers to requests, which are kept until an event shows that they may be
outdated.

Bounded by bytes and by number. When there is no room, the least recently used answer of the namespace that
occupies the most is evicted, so that no tenant can displace the answers of smaller ones.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

ENTRY_BYTES: Final = 1024
"""An answer takes about this much memory besides its body and its head."""
_SPEAKER_BYTES: Final = 300
"""An answer takes about this much memory for each further speaker that it depends on."""

Key = tuple[bytes, bytes | None]
"""The target of the request as it was sent, with a digest of its body if it has one, and its
`Accept-Encoding`.
"""


def lists_of(namespace: str) -> str:
    """Return the entry of `PreparedAnswer.speakers` for answers that list a namespace. It stands for all
    speakers that may be added to a page of the list: new speakers, and speakers that become pinned.
    """
    return f"{namespace}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAnswer:
    """A kept answer to GET, which also serves HEAD, conditional requests with its ETag, and requests for a
    part of it.
    """

    speakers: tuple[str, ...]
    """The speakers whose events may make the answer outdated."""
    profiles: tuple[str, ...]
    """The profiles whose changes of encoder may make the answer outdated."""
    route: str
    """The template of the route, for metrics."""
    is_file: bool
    """True for an artifact's file, False for a descriptor."""
    etag: bytes
    unchanged: bytes
    """The head of the answer with status 304, without the headers that differ from request to request."""
    whole: bytes | None = None
    """The head of the answer with status 200. None if the bytes have not been read yet."""
    body: bytes = b""

    @property
    def size(self) -> int:
        """The memory that the answer takes, in bytes, without its key."""
        together = len(self.body) + len(self.whole or b"") + len(self.unchanged)
        return ENTRY_BYTES + _SPEAKER_BYTES * (len(self.speakers) - 1) + together


class _Namespace:
    """The answers of one namespace, in order of use. The most recently used one is last."""

    def __init__(self) -> None:
        self.answers: OrderedDict[Key, PreparedAnswer] = OrderedDict()
        self.bytes = 0


class PreparedAnswers:
    """The prepared answers of a process. Must only be used from its event loop.

    Args:
        max_bytes: how much memory they may take.
        max_answers: how many there may be.
    """

    def __init__(self, max_bytes: int, max_answers: int) -> None:
        self._max_bytes = max_bytes
        self._max_answers = max_answers
        self._namespaces: dict[str, _Namespace] = {}
        self._by_speaker: dict[str, set[tuple[str, Key]]] = {}
        self.bytes = 0
        self.count = 0

    def get(self, namespace: str, key: Key) -> PreparedAnswer | None:
        found = self._namespaces.get(namespace)
        if found is None:
            return None
        answer = found.answers.get(key)
        if answer is not None:
            found.answers.move_to_end(key)
        return answer

    def put(self, namespace: str, key: Key, answer: PreparedAnswer) -> None:
        """Keep an answer. It replaces an earlier one to the same request."""
        self._remove(namespace, key)
        size = _size(key, answer)
        if size > self._max_bytes:
            return
        kept = self._namespaces.setdefault(namespace, _Namespace())
        kept.answers[key] = answer
        self._count(kept, size, 1)
        for speaker in answer.speakers:
            self._by_speaker.setdefault(speaker, set()).add((namespace, key))
        while self.bytes > self._max_bytes or self.count > self._max_answers:
            self._evict_one()

    def drop_speaker(self, speaker: str) -> None:
        self._drop(list(self._by_speaker.get(speaker, ())))

    def drop_profile(self, profile: str) -> None:
        self._drop(
            [
                (namespace, key)
                for namespace, kept in self._namespaces.items()
                for key, answer in kept.answers.items()
                if profile in answer.profiles
            ]
        )

    def clear(self) -> None:
        self._namespaces.clear()
        self._by_speaker.clear()
        self.bytes = self.count = 0

    def _drop(self, dropped: Iterable[tuple[str, Key]]) -> None:
        for namespace, key in dropped:
            self._remove(namespace, key)

    def _evict_one(self) -> None:
        namespace, kept = max(self._namespaces.items(), key=lambda item: item[1].bytes)
        self._remove(namespace, next(iter(kept.answers)))

    def _remove(self, namespace: str, key: Key) -> None:
        kept = self._namespaces.get(namespace)
        answer = kept.answers.pop(key, None) if kept is not None else None
        if kept is None or answer is None:
            return
        self._count(kept, -_size(key, answer), -1)
        if not kept.answers:
            del self._namespaces[namespace]
        for speaker in answer.speakers:
            theirs = self._by_speaker[speaker]
            theirs.discard((namespace, key))
            if not theirs:
                del self._by_speaker[speaker]

    def _count(self, kept: _Namespace, size: int, number: int) -> None:
        kept.bytes += size
        self.bytes += size
        self.count += number


def _size(key: Key, answer: PreparedAnswer) -> int:
    """Return the memory that an answer takes with its key, because clients can send keys of several
    kilobytes.
    """
    target, encoding = key
    return answer.size + len(target) + len(encoding or b"")
