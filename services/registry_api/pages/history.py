"""Shows the history of a live or deleted voice on its page."""

from collections.abc import Iterator
from typing import Any

from fastapi import Request

from services.registry_api.dependencies import Services, parts_of
from services.registry_api.keys.api_keys import ApiKey
from services.registry_api.pages.forms import address
from services.registry_api.protocol.callers import Caller
from services.registry_api.wire import rendering
from services.registry_api.wire.paging import newest_changes, position_in_history
from services.shared.model.document import SpeakerDocument
from speaker_registry.errors import RateLimited, Unavailable

_CHANGES = 20


def past_of(
    request: Request, services: Services, document: SpeakerDocument, path: str, *, past: str, **query: int
) -> dict[str, Any]:
    """Return the variables of the template `history.html`.

    Args:
        past: show the changes before this position; an empty text shows the newest ones.
        query: further parameters of the next page's address.
    """
    before = position_in_history(past, param="past")
    found, more = newest_changes(document, services.profiles, before=before, limit=_CHANGES)
    changes = [rendering.change(one) for one in found]
    return {
        "changes": changes,
        "names": _names(request, services, dict.fromkeys(one.by for one in changes)),
        "earlier_changes": address(path, past=str(found[-1].position), **query) if more else None,
    }


def _names(request: Request, services: Services, ids: dict[str, None]) -> dict[str, str]:
    """Return the names of those keys with these ids that the caller may see, by id."""
    caller, access = request.scope["caller"], services.access
    names = {one: "bootstrap key" for one in ids if access.is_bootstrap_id(one)}
    keys = dict.fromkeys(one for one in ids if one not in names)
    found = _keys(request, services, keys)
    return names | {key.record.id: key.record.name for key in found if _may_know(caller, key)}


def _keys(request: Request, services: Services, ids: dict[str, None]) -> Iterator[ApiKey]:
    """Yield the keys with these ids, in any state, as far as they can be found.

    A copy of any age will do, because the name of a key never changes.
    """
    unknown = list[str]()
    for one in ids:
        if key := services.keys.recall(one):
            yield key
        else:
            unknown.append(one)
    if not unknown:
        return
    try:
        with parts_of(request).store_slots.hold_in_thread():
            yield from filter(None, map(services.keys.read, unknown))
    except (RateLimited, Unavailable):
        return  # the bucket is slow or unavailable, so the page leaves out these names


def _may_know(caller: Caller, key: ApiKey) -> bool:
    return caller.for_any_namespace or key.record.namespace == caller.namespace
