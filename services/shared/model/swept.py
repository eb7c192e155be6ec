"""The ids of bytes that were collected as garbage. No later change of the document may name them. Pure."""

from collections.abc import Collection

from services.shared.model.document import SpeakerDocument
from speaker_registry.errors import Conflict

KEPT_SWEPT_SECONDS = 30 * 24 * 3600
"""Time for which the id of collected bytes stays in the document. An upload that was suspended for days must
not refer to bytes that are gone.
"""


class Swept(Conflict):
    """The stored bytes were collected as garbage, because they were old and no document named them."""


def with_swept(
    document: SpeakerDocument, ids: Collection[str], *, gone: Collection[str], now: int
) -> SpeakerDocument:
    """Fence ids whose bytes are about to be deleted: no later change may name them.

    Ids that the document names are not fenced, even if the caller passes them.

    Args:
        gone: fenced ids whose bytes are known to be gone. They are dropped once they are older than 30 days.
    """
    fenced = dict.fromkeys(sorted(set(ids) - document.names_of_bytes), now)
    kept = {
        one: since
        for one, since in document.swept.items()
        if one not in gone or now - since <= KEPT_SWEPT_SECONDS
    }
    swept = {**fenced, **kept}
    return document if swept == document.swept else document.having(swept=swept)


def refuse_swept(document: SpeakerDocument, ids: Collection[str]) -> None:
    """Raise `Swept` if one of the ids was collected as garbage."""
    if not document.swept.keys().isdisjoint(ids):
        raise Swept("The upload took so long that its bytes were collected as garbage. Send it again.")
