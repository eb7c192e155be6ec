"""Shows a voice's history on pages, as long as the voice lives and after it."""

from typing import Any

from services.registry_api.pages.forms import address
from services.registry_api.wire import rendering
from services.registry_api.wire.paging import newest_changes
from services.shared.model.document import SpeakerDocument

_CHANGES = 20


def past_of(document: SpeakerDocument, path: str, *, past: int, **query: int) -> dict[str, Any]:
    """Return the variables of the template `history.html`.

    Args:
        past: show the changes before this revision; 0 shows the newest ones.
        query: what else belongs into the address of the next page.
    """
    changes, more = newest_changes(document, before=past or None, limit=_CHANGES)
    return {
        "changes": [rendering.change(one) for one in changes],
        "earlier_changes": address(path, past=changes[-1].revision, **query) if more else None,
    }
