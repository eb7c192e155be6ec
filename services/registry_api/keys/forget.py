"""Deletes the documents and times of use of API keys that ended long ago."""

from functools import partial

import structlog

from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_document import KeyDocument, is_forgotten, without_children
from services.registry_api.keys.key_rules import KEPT_SECONDS
from services.registry_api.keys.key_uses import KeyUses

log = structlog.get_logger(__name__)


def sweep(keys: HeldKeys, uses: KeyUses) -> int:
    """Delete the keys that ended long ago, and the times at which such keys were last used.

    Returns the number of keys. Raises `Unavailable`.
    """
    used = uses.last().keys()  # read first, so that the listing has every key that was used
    forgotten = forget(keys)
    uses.forget(used - keys.documents().keys())
    return forgotten


def forget(keys: HeldKeys) -> int:
    """Delete the keys that ended more than `KEPT_SECONDS` ago. Returns their number.

    Keys that were made with a deleted key are afterwards recorded under the key that made the deleted one, so
    that they are still revoked with all its descendants. Raises `Unavailable`.
    """
    documents, before = keys.documents(), keys.now() - KEPT_SECONDS
    old = {key_id for key_id, found in documents.items() if is_forgotten(found, before=before)}
    inherited: dict[str, list[str]] = {}
    for key_id in sorted(old):
        inherited.setdefault(_nearest_kept_ancestor(documents, old, key_id), []).extend(
            documents[key_id].made
        )
    for heir in inherited.keys() & documents.keys():
        decide = partial(without_children, gone=old, inherited=inherited[heir])
        keys.change(heir, decide, by="housekeeping", did="forget")
    keys.forget(old)
    if old:
        log.info("keys.swept", keys=len(old))
    return len(old)


def _nearest_kept_ancestor(documents: dict[str, KeyDocument], old: set[str], key_id: str) -> str:
    """Return the nearest ancestor of a key that is not deleted."""
    while key_id in old:
        record = documents[key_id].record
        key_id = record.created_by if record else ""
    return key_id
