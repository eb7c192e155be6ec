"""The records that a process keeps of the API keys that it holds. This module does no I/O."""

from dataclasses import dataclass
from typing import NamedTuple

from services.registry_api.keys.api_keys import ANY_NAMESPACE
from services.registry_api.keys.key_document import KeyDocument
from services.shared.view.shared_copies import SeenChanges
from speaker_registry.errors import Unavailable


@dataclass(frozen=True, slots=True)
class HeldKey:
    """The document of one key as it was read, with the limits of its validity."""

    document: KeyDocument
    etag: str | None
    read_at: float
    good_for_seconds: float
    """The document is valid for this long without asking Redis."""
    generation: str = ""
    position: int = 0
    """The document stays valid until Redis records a later change in this generation."""
    problem: Unavailable | None = None
    """The reason why the document in the bucket could not be read or used. The key grants no access."""

    def may_be_of(self, namespace: str) -> bool:
        """Return whether this may be a key of a namespace, or of any (`*`). The namespace of a key never
        changes.
        """
        record = self.document.record
        return record is None or namespace in {ANY_NAMESPACE, record.namespace}


@dataclass(frozen=True, slots=True)
class RedisAnswer:
    """The changes that Redis had recorded when it was asked."""

    seen: SeenChanges
    at: float


class FailedRead(NamedTuple):
    """The error of a read, for all threads that waited for it."""

    at: float
    error: Unavailable
