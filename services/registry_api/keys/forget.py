"""Deletes the documents of API keys that ended long ago."""

from functools import partial

import structlog

from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_document import KeyDocument, is_forgotten, without_child
from services.registry_api.keys.keyring import KEPT_SECONDS

log = structlog.get_logger(__name__)


def forget(keys: HeldKeys) -> int:
    """Delete the keys that ended longer ago than they are shown. Returns their number.

    The keys that a forgotten key has made count as made by its maker from then on, so that they are still
    found when that one is revoked with all keys that came from it. Raises `Unavailable`.
    """
    documents, before = keys.documents(), keys.now() - KEPT_SECONDS
    old = [key_id for key_id, found in documents.items() if is_forgotten(found, before=before)]
    for key_id in sorted(old, key=lambda one: _made_at(documents[one]), reverse=True):  # children come first
        _hand_on(keys, documents, key_id)
    keys.forget(old)
    if old:
        log.info("keys.swept", keys=len(old))
    return len(old)


def _made_at(document: KeyDocument) -> int:
    return document.record.created_at if document.record else 0


def _hand_on(keys: HeldKeys, documents: dict[str, KeyDocument], key_id: str) -> None:
    """Have the maker of a key name the keys which that one has made."""
    found = documents[key_id]
    maker = found.record.created_by if found.record else ""
    if maker in documents:
        decide = partial(without_child, child=key_id, inherits=found.made)
        changed = keys.change(maker, decide, by="housekeeping", did="forget")
        documents[maker] = changed.document
