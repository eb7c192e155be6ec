"""The document that holds everything about one API key: `_keys/{id}.json`. Pure.

The functions are the changes of the document. Each returns its argument if there is nothing to change, and
refuses by raising. No secret is in the document, only the SHA-256 of one.
"""

from collections.abc import Iterable, Set
from typing import ClassVar, Self

from services.registry_api.keys.api_keys import ApiKey, ApiKeyRecord, End
from services.registry_api.keys.key_rules import key_not_found
from services.shared.model.records import Record
from services.shared.model.stored_document import FAR_ABOVE, StoredDocument
from speaker_registry.errors import ApiKeyEnded, InvalidApiKey


class KeyEnd(Record):
    """The end of a key, which was set by a caller."""

    at: int
    """The time from which the key is not accepted, in Unix seconds, or `AT_ONCE` of `api_keys`."""
    said_at: int
    """The store's time at which the end was set."""
    by: str
    """The caller that set the end."""


class KeyDocument(StoredDocument):
    """Everything that is true about one API key. A change makes a new document with the next revision."""

    UPDATED: ClassVar[str] = "keys.updated"

    record: ApiKeyRecord | None = None
    """None if the key was ended before it was made. In that case it can no longer be made."""
    end: KeyEnd | None = None
    """The end of the key. If several were set, the earliest one."""
    made: tuple[str, ...] = ()
    """The ids of the keys that this key has made, so that all of them can be ended with it."""

    @property
    def named(self) -> str | None:
        return self.record.id if self.record else None

    @property
    def key(self) -> ApiKey | None:
        """Return the key, or None if there is none."""
        if self.record is None:
            return None
        ends = () if self.end is None else (End(self.end.at, self.end.said_at),)
        return ApiKey(self.record, ends)

    def following(self, before: Self, change_id: str | None, *, at: int, by: str, did: str) -> Self:
        """Return this document as the next revision, which follows on the one that a change has raised."""
        raised = before.having(revision=max(before.revision, self.revision))
        return super().following(raised, change_id, at=at, by=by, did=did)

    @classmethod
    def after_damage(cls) -> Self:
        """Return the empty document that is used to end a key whose document is damaged. Such a key grants no
        access. `ended` raises the revision.
        """
        return cls(revision=1)


def made_as(document: KeyDocument, record: ApiKeyRecord) -> KeyDocument:
    """Add the record of a new key. Raises `InvalidApiKey` if its maker was ended meanwhile with all its
    keys.
    """
    if document.revision:
        raise InvalidApiKey("The API key that was to make this one was revoked meanwhile.")
    return document.having(record=record)


def with_child(document: KeyDocument, child: str, now: float) -> KeyDocument:
    """Record a key that this key is about to make. Raises `InvalidApiKey` if this key has ended."""
    if child in document.made:
        return document
    key = document.key
    state = key.state(now) if key else "revoked"
    if state != "active":
        raise InvalidApiKey(f"This API key is {state}.")
    return document.having(made=(*document.made, child))


def without_children(document: KeyDocument, gone: Set[str], inherited: Iterable[str]) -> KeyDocument:
    """Replace keys that this key has made by the keys that those have made in turn."""
    named = dict.fromkeys((*document.made, *inherited))
    kept = tuple(one for one in named if one not in gone)
    return document if kept == document.made else document.having(made=kept)


def ended(document: KeyDocument, at: int, *, now: int, by: str) -> KeyDocument:
    """End a key at a time, or at once. An earlier end stays.

    The revision rises far above all that came before. A process that has read a newer revision of the key,
    because the bucket has lost the document or has an older copy of it, would otherwise not believe the end.
    """
    above = now + FAR_ABOVE
    if document.end is not None and document.end.at <= at:
        if document.revision > document.end.said_at:
            return document
        return document.having(revision=above)
    return document.having(revision=max(document.revision, above), end=KeyEnd(at=at, said_at=now, by=by))


def replaced(document: KeyDocument, key_id: str, at: int, *, now: int, by: str) -> KeyDocument:
    """End a key that a new key replaces. Raises the same errors as `check_replaceable`."""
    check_replaceable(document, key_id, now)
    return ended(document, at, now=now, by=by)


def check_replaceable(document: KeyDocument, key_id: str, now: float) -> None:
    """Raise `ApiKeyEnded` if a key has ended, or `ApiKeyNotFound` if the document holds none.

    Ending a key whose document is lost would write a document that is newer than any copy of the lost one.
    """
    if (key := document.key) is None:
        raise key_not_found(key_id)
    if (state := key.state(now)) != "active":
        raise key_ended(key, state)


def key_ended(key: ApiKey, state: str) -> ApiKeyEnded:
    """Return the error for a key that has ended, and so cannot be rotated."""
    return ApiKeyEnded(
        f"API key {key.record.id!r} is {state}; only an active key can be rotated. Make a new one.",
        param="key_id",
    )


def is_forgotten(document: KeyDocument, *, before: float) -> bool:
    """Return whether a key ended before this time, so that it is no longer shown."""
    if document.record is None:
        return document.end is not None and document.end.said_at < before
    ends_at = document.key.ends_at if document.key else None
    return ends_at is not None and ends_at < before
