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
    old = {key_id: found for key_id, found in documents.items() if is_forgotten(found, before=before)}
    for key_id, found in old.items():
        _hand_on(keys, documents, key_id, found)
    keys.forget(old)
    if old:
        log.info("keys.swept", keys=len(old))
    return len(old)


def _hand_on(keys: HeldKeys, documents: dict[str, KeyDocument], key_id: str, found: KeyDocument) -> None:
    maker = found.record.created_by if found.record else ""
    if maker in documents:
        decide = partial(without_child, child=key_id, inherits=found.made)
        keys.change(maker, decide, by="housekeeping", did="forget")
