"""`_view.json`, the document in the bucket that names the generation in use.

A process that no longer finds this generation in its own Redis may ask there whether anybody still serves it.
"""

import json
from dataclasses import dataclass

from services.shared.bucket.documents import Base, Documents
from services.shared.bucket.layout import VIEW
from services.shared.model.clock import Clock
from services.shared.model.records import seal, unseal
from speaker_registry.errors import Conflict

LOOK_SECONDS = 2.0
"""`_view.json` is looked at this often. A reader of a view that is not in use any more stops within this."""
ASKED_SECONDS = 60.0
"""A question that nobody answers for this long shows that no process holds the generation in use."""


@dataclass(frozen=True, slots=True)
class Named:
    """What `_view.json` said when it was looked at."""

    base: Base
    generation: str = ""
    question: str = ""
    """The id of a question whether anybody still serves the generation. Empty if nobody asks."""

    @classmethod
    def of(cls, base: Base) -> "Named":
        """Parse a document. A missing or damaged one names no generation, and may be replaced."""
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
        """Return whether it is time to look again."""
        return self._clock.monotonic() - self._seen_at >= LOOK_SECONDS

    def is_unanswered(self) -> bool:
        """Return whether a question has been in the document for so long that nobody will answer it."""
        question, since = self._asked
        return bool(question) and self._clock.since_boot() - since > ASKED_SECONDS

    def look(self) -> Named:
        """Return what the document says now. Raises `Unavailable`."""
        began = self._clock.monotonic()
        named = Named.of(self._documents.read(VIEW))
        self.seen, self._seen_at = named, began
        if named.question != self._asked[0]:
            self._asked = (named.question, self._clock.since_boot())
        return named

    def swap(self, named: Named, **members: str) -> bool:
        """Replace `_view.json` while it is what was looked at. Returns whether this process replaced it."""
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
