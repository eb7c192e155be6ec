"""`_view.json`, the document in the bucket that names the generation in use.

A process that no longer finds this generation in its own Redis may ask in the document whether any process
still serves it.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock

from services.shared.bucket.documents import Base, Documents
from services.shared.bucket.layout import VIEW
from services.shared.model.clock import Clock
from services.shared.model.records import seal, unseal
from services.shared.model.threads import BackgroundThread
from speaker_registry.errors import Conflict, Unavailable

REREAD_SECONDS = 2.0
"""`_view.json` is read this often. A process stops reading a view that is no longer in use within this
time.
"""
ASKED_SECONDS = 60.0
"""If no process answers a question for this long, none holds the generation in use."""
PATIENCE_SECONDS = 2.0
"""A store that takes longer to answer counts as one that does not answer, so that readers of the view do not
wait for it.
"""
_CHANGE_SECONDS = 2.0
"""A change that the store does not carry out is repeated for this long only, because users of the view wait
for it.
"""
_READING = "view-document"
"""The name of the thread that reads the document."""


@dataclass(frozen=True, slots=True)
class Named:
    """The content of `_view.json` when it was last read."""

    base: Base
    generation: str = ""
    question: str = ""
    """The id of a question whether any process still serves the generation. Empty if there is none."""

    @classmethod
    def of(cls, base: Base) -> "Named":
        """Parse a document. A missing or damaged document names no generation, and may be replaced."""
        members = {} if base.body is None or base.damaged else unseal(base.body)
        return cls(base, str(members.get("generation", "")), str(members.get("question", "")))


class ViewDocument:
    """The document as this process saw it last."""

    def __init__(
        self,
        documents: Documents,
        clock: Clock,
        run_in_background: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self._documents = documents
        self._clock = clock
        self._thread = BackgroundThread(_READING)
        self._run_in_background = run_in_background or self._thread
        self.seen: Named | None = None
        self._seen_at = float("-inf")
        self._asked: tuple[str, float] = ("", 0.0)
        self._seeing = Lock()
        self._is_read = Event()
        """Set unless a thread is reading the document for `refresh`."""
        self._is_read.set()

    def close(self) -> None:
        """End the thread that reads the document."""
        self._thread.close()

    def is_due(self) -> bool:
        """Return whether it is time to read the document again."""
        return self._clock.monotonic() - self._seen_at >= REREAD_SECONDS

    def is_unanswered(self) -> bool:
        """Return whether a question has been in the document for so long that nobody will answer it."""
        question, since = self._asked
        return bool(question) and self._clock.since_boot() - since > ASKED_SECONDS

    def read(self) -> Named:
        """Read the document, and return its content. Raises `Unavailable`."""
        began = self._clock.monotonic()
        named = Named.of(self._documents.read(VIEW))
        with self._seeing:
            self._see(named, began)
        return named

    def refresh(self) -> None:
        """Read the document into `seen`, but wait for the store only for `PATIENCE_SECONDS`.

        A late answer still counts. A failure changes nothing. Must not be called by two threads at once.
        """
        if self._is_read.is_set():
            self._is_read.clear()
            try:
                self._run_in_background(self._refresh)
            except RuntimeError:  # no thread can be started now
                self._is_read.set()
        self._is_read.wait(PATIENCE_SECONDS)

    def _refresh(self) -> None:
        before, began = self.seen, self._clock.monotonic()
        try:
            with suppress(Unavailable):
                named = Named.of(self._documents.read(VIEW))
                with self._seeing:
                    if self.seen is before:  # otherwise another thread has read or changed it meanwhile
                        self._see(named, began)
        finally:
            self._is_read.set()

    def _see(self, named: Named, began: float) -> None:
        self.seen, self._seen_at = named, began
        if named.question != self._asked[0]:
            self._asked = (named.question, self._clock.since_boot())

    def begin(self, named: Named, generation: str) -> bool:
        """Name a new generation, unless another process was first. Returns whether this process did so."""
        return self._swap(named, generation=generation, question="")

    def ask(self, named: Named) -> None:
        """Ask whether any process still serves the generation, unless that was asked already."""
        if not named.question:
            self._swap(named, question=self._clock.new_id())

    def answer(self, named: Named) -> None:
        """Remove a question, because this process serves the generation."""
        if named.question:
            with suppress(Unavailable):
                self._swap(named, question="")

    def _swap(self, named: Named, **members: str) -> bool:
        """Replace the document if it has not changed since `named` was read. Returns whether it was."""
        nonce = self._clock.new_id()
        kept = {"format": 1, "generation": named.generation, "question": named.question}

        def decide(base: Base) -> bytes:
            if base.etag != named.base.etag:
                raise Conflict("Another process was first.")
            return seal({**kept, **members, "revision": base.revision + 1, "nonce": nonce})

        try:
            changed = self._documents.change(
                VIEW,
                decide,
                base=named.base,
                is_made=lambda body, _: json.loads(body).get("nonce") == nonce,
                until=self._clock.since_boot() + _CHANGE_SECONDS,
            )
        except Conflict:
            self.seen = None
            return False
        with self._seeing:
            self.seen = Named.of(changed)
        return True
