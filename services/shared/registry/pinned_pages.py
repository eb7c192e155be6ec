"""Lists the live speakers of a namespace page by page, the pinned ones first.

If one page has them all, it is sorted. Otherwise the pages of pinned speakers come first, and after them the
pages of all speakers in the order of keys, which list pinned speakers again. So a speaker that is pinned or
unpinned between two pages is never left out, and pages of the second part change only with their speakers.

While the view cannot list the pinned speakers, the list consists of the second part alone.
"""

from contextlib import suppress
from dataclasses import replace

from services.shared.bucket.store import Store
from services.shared.registry.pages import SpeakerPage, keys_in_view, read_live, speaker_page
from services.shared.registry.speakers import Speakers
from speaker_registry.errors import Unavailable

_PINNED = "/pinned:"
"""The prefix of a cursor in the first part. After it stands the key of the last pinned speaker that was
listed.

No key contains a `/`, and all other cursors that begin with a `/` continue with a hashed slug or `~`.
"""
_ALL = "/all"
"""The cursor at which the second part begins."""


def page_pinned_first(
    speakers: Speakers, store: Store, namespace: str, *, after: str = "", limit: int
) -> SpeakerPage:
    """Return up to `limit` live speakers after the cursor `after`, and at most about `PAGE_BYTES` of texts.

    The pages are in the order that this module describes. A speaker may be on two pages, but never twice on
    one page. Damaged documents and an unavailable view are handled as in `speaker_page`.

    Raises:
        Unavailable: the bucket does not answer either.
    """
    is_first_part = not after or after.startswith(_PINNED)
    goes_on = bool(after) or _has_more_than(speakers, namespace, limit)
    if is_first_part and goes_on and (found := _pinned_page(speakers, namespace, after, limit)):
        return found
    start = "" if is_first_part or after == _ALL else after
    listed = speaker_page(speakers, store, namespace, after=start, limit=limit).within_page_bytes()
    if after:
        return listed
    if not listed.more:
        return replace(
            listed, entries=sorted(listed.entries, key=lambda entry: not entry[1].document.about.pinned)
        )
    return _pinned_page(speakers, namespace, after, limit) or listed


def _pinned_page(speakers: Speakers, namespace: str, after: str, limit: int) -> SpeakerPage | None:
    """Return a page of the first part. Returns None if no pinned speakers are left, or if the view cannot
    list them.
    """
    with suppress(Unavailable):
        keys = keys_in_view(
            speakers, namespace, after=after.removeprefix(_PINNED), limit=limit + 1, pinned=True
        )
        if not keys:
            return None
        listed, more = keys[:limit], len(keys) > limit
        live = read_live(speakers, namespace, listed)
        entries = [(_PINNED + key, one) for key, one in live if one.document.about.pinned]
        last = _PINNED + listed[-1] if more else _ALL
        return SpeakerPage(entries, last=last, more=True).within_page_bytes()
    return None


def _has_more_than(speakers: Speakers, namespace: str, limit: int) -> bool:
    """Return whether the view lists more speakers than fit on a page, without reading them."""
    with suppress(Unavailable):
        return len(keys_in_view(speakers, namespace, limit=limit + 1)) > limit
    return False
