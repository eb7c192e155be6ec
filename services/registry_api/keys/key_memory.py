"""The documents of API keys that one process has in memory. This module does no I/O."""

from dataclasses import replace

from services.registry_api.keys.held_key import HeldKey, RedisAnswer
from services.registry_api.keys.key_changes import FRESH_SECONDS, KeyChanges
from services.registry_api.keys.key_document import KeyDocument
from services.shared.registry.shared_documents import Found
from speaker_registry.errors import Unavailable

NO_KEY = KeyDocument()
"""The document of a key that does not exist."""
_MAX_HELD = 20_000
"""Largest number of ids that are held, including those of keys that do not exist."""


class KeyMemory:
    """Holds documents by the ids of their keys. Safe to use from several threads."""

    def __init__(self, changes: KeyChanges) -> None:
        self._changes = changes
        self._held: dict[str, HeldKey] = {}  # bounded by `_MAX_HELD`

    def get(self, key_id: str) -> HeldKey | None:
        """Return what is held of a key, however old it is."""
        return self._held.get(key_id)

    def valid(self, key_id: str) -> HeldKey | None:
        """Return what is held of a key if it can be trusted now."""
        held = self._held.get(key_id)
        return held if held is not None and self._changes.is_valid(key_id, held) else None

    def all(self) -> dict[str, HeldKey]:
        """Return a copy of everything that is held."""
        return self._held.copy()

    def ids_of_existing(self) -> set[str]:
        """Return the ids of the held keys that exist."""
        return {key_id for key_id, one in self.all().items() if one.document.revision}

    def hold(
        self, key_id: str, found: Found[KeyDocument], answer: RedisAnswer | None, began: float
    ) -> HeldKey:
        """Hold a document that was read after `answer` and `began`, unless a later revision is known.

        A document that may be older than the last notice is read again before long.
        """
        if self._changes.happened_since(began):
            answer = None
        known = self._held.get(key_id)
        if known is not None and known.document.revision > found.document.revision:
            found = Found(known.document, known.etag)  # a node of the store is outdated
        held = HeldKey(
            found.document,
            found.etag,
            began,
            FRESH_SECONDS,
            generation=answer.seen.generation if answer else "",
            position=answer.seen.position if answer else 0,
        )
        return self._keep(key_id, held)

    def hold_nothing(
        self, key_id: str, began: float, seconds: float, problem: Unavailable | None = None
    ) -> HeldKey:
        """Hold for some seconds that there is no such key, or that its document has a problem."""
        return self._keep(key_id, HeldKey(NO_KEY, None, began, seconds, problem=problem))

    def distrust(self, key_id: str) -> None:
        """Let a document be read again although Redis knows of no change."""
        if (held := self._held.get(key_id)) is not None:
            self._held[key_id] = replace(held, generation="")

    def forget(self, key_id: str) -> None:
        self._held.pop(key_id, None)

    def _keep(self, key_id: str, held: HeldKey) -> HeldKey:
        known = self._held.get(key_id)
        if len(self._held) >= _MAX_HELD:
            self._held.clear()
        self._held[key_id] = held
        if known is not None and known.document.key != held.document.key:
            self._changes.add()  # last, so that whoever looks for the key then finds the new document
        return held
