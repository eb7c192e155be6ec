"""`_view.json`, the document in the bucket that names the generation in use.

A process that no longer finds this generation in its own Redis may ask in the document whether any process
still serves it.
"""

import json
from dataclasses import dataclass

from services.shared.bucket.documents import Base, Documents
from services.shared.bucket.layout import VIEW
from services.shared.model.clock import Clock
from services.shared.model.records import seal, unseal
from speaker_registry.errors import Conflict

REREAD_SECONDS = 2.0
"""`_view.json` is read this often. A process stops reading a view that is no longer in use within this
time.
"""
ASKED_SECONDS = 60.0
"""If no process answers a question for this long, none holds the generation in use."""


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

    def __init__(self, documents: Documents, clock: Clock) -> None:
        self._documents = documents
        self._clock = clock
        self.seen: Named | None = None
        self._seen_at = float("-inf")
        self._asked: tuple[str, float] = ("", 0.0)

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
        self.seen, self._seen_at = named, began
        if named.question != self._asked[0]:
            self._asked = (named.question, self._clock.since_boot())
        return named

    def swap(self, named: Named, **members: str) -> bool:
        """Replace `_view.json` if it has not changed since the last read. Returns whether this process
        replaced it.
        """
        nonce = self._clock.new_id()
        kept = {"format": 1, "generation": named.generation, "question": named.question}

        def decide(base: Base) -> bytes:
            if base.etag != named.base.etag:
                raise Conflict("Another process was first.")
            return seal({**kept, **members, "revision": base.revision + 1, "nonce": nonce})

        try:
            changed = self._documents.change(
                VIEW, decide, base=named.base, done=lambda body: json.loads(body).get("nonce") == nonce
            )
        except Conflict:
            self.seen = None
            return False
        self.seen = Named.of(changed)
        return True
