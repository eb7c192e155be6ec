"""Ends an API key at once, and on request all keys that were made with it, directly or indirectly."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import structlog

from services.registry_api.keys.api_keys import AT_ONCE, ApiKey, is_key_id
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_document import KeyDocument, ended
from services.registry_api.keys.key_rules import key_not_found
from services.shared.registry.shared_documents import Changed

log = structlog.get_logger(__name__)


def revoke(keys: HeldKeys, key_id: str, *, by: str, with_descendants: bool = False) -> ApiKey | None:
    """End a key at once. When this returns, no process accepts the key.

    Args:
        by: the caller that ends the key, for the document and the log.
        with_descendants: also end the keys that it made, the keys that these made, and so on. If that fails
            half-way, it can be repeated.

    Returns None in place of a key whose document was damaged or lost.

    Raises:
        ApiKeyNotFound: there is no such key, and this process has not known one either.
        Unavailable: a key may not be ended yet, or other processes may not know yet that it is.
    """
    end = partial(ended, at=AT_ONCE, now=keys.now(), by=by)

    def end_known(found: KeyDocument) -> KeyDocument:
        if not found.revision and keys.recall(key_id) is None:
            raise key_not_found(key_id)
        return end(found)

    if not is_key_id(key_id):
        raise key_not_found(key_id)
    first = keys.change(key_id, end_known, by=by, did="revoke", mends=True)
    log.info("key.ended", key_id=key_id, at=AT_ONCE, by=by)
    changed = [first, *(_descendants(keys, key_id, first.document, end, by) if with_descendants else ())]
    for one in changed:
        one.expect_shared()
    keys.settle()
    return first.document.key


def _descendants(
    keys: HeldKeys, maker_id: str, maker: KeyDocument, end: Callable[[KeyDocument], KeyDocument], by: str
) -> Iterator[Changed[KeyDocument]]:
    """End the keys that a key has made, the keys that these have made, and so on.

    A key that is recorded but not made yet is ended, too, and can then no longer be made. The document of a
    maker may name too few keys, because it was lost, damaged, or restored from an older backup, so the keys
    that say who made them are added.
    """
    recorded = defaultdict(set)
    for record in filter(None, (document.record for document in keys.documents().values())):
        recorded[record.created_by].add(record.id)
    seen, makers = {maker_id}, {maker_id: maker}
    while makers:
        level = {made for key_id, one in makers.items() for made in (*one.made, *recorded[key_id])} - seen
        seen |= level
        changed: dict[str, Changed[KeyDocument]] = {}
        keys.run_all([partial(_end_one, keys, key_id, end, by, changed) for key_id in level])
        yield from changed.values()
        makers = {key_id: one.document for key_id, one in changed.items()}


def _end_one(
    keys: HeldKeys,
    key_id: str,
    end: Callable[[KeyDocument], KeyDocument],
    by: str,
    into: dict[str, Changed[KeyDocument]],
) -> None:
    into[key_id] = keys.change(key_id, end, by=by, did="revoke", mends=True)
    log.info("key.ended", key_id=key_id, at=AT_ONCE, by=by)
