"""Brings the view up to a listing of all documents: after a new generation began, and now and then.

What a node that was behind showed, and a commit whose process died before it told the view, would otherwise
be wrong for good. A document whose ETag the view has is not read.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

import structlog

from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.layout import documents_prefix, speaker_of
from services.shared.bucket.store import Listing
from services.shared.registry.speakers import Speakers
from speaker_registry.errors import SpeakerRegistryError, VoiceDamaged, VoiceUnreadable
from speaker_registry.names import is_namespace

log = structlog.get_logger(__name__)

_PORTION = 500
_LOOK_SECONDS = 10.0
"""A speaker that the view lacked is looked at within this, because Redis may have lost its jobs as well."""


class Listed(Protocol):
    """The part of a store that lists."""

    def folders(self, prefix: str) -> list[str]: ...

    def list(self, prefix: str) -> Listing: ...


def rebuild(store: Listed, speakers: Speakers, *, stopped: Callable[[], bool] = lambda: False) -> int:
    """Apply every document that the view lacks or has another one of. Returns how many there were.

    The view is complete after that. A voice whose document cannot be understood is left out and reported.

    Raises `Unavailable` if the bucket or Redis went away; then the view is as complete as it was.
    """
    generation, applied = speakers.generation.for_reading(), 0
    listed = _listed(store)
    while portion := dict(islice(listed, _PORTION)):
        for speaker_id in _outdated(speakers, portion):
            if stopped():
                return applied
            applied += _bring_up(speakers, speaker_id)
    speakers.view.complete(generation)
    return applied


def _listed(store: Listed) -> Iterator[tuple[SpeakerId, str | None]]:
    for namespace in filter(is_namespace, store.folders("")):
        for stored in store.list(documents_prefix(namespace)).objects:
            if speaker_id := speaker_of(stored.key):
                yield speaker_id, stored.etag


def _outdated(speakers: Speakers, portion: dict[SpeakerId, str | None]) -> list[SpeakerId]:
    """Return the speakers of whom the view holds another document, or of whom the listing tells no ETag."""
    known = {one: etag for one, etag in portion.items() if etag}
    copies = speakers.view.get(list(portion), known)
    return [
        one
        for (one, etag), copy in zip(portion.items(), copies, strict=True)
        if etag is None or copy.etag != etag
    ]


def _bring_up(speakers: Speakers, speaker_id: SpeakerId) -> bool:
    try:
        speakers.refresh(speaker_id)
        speakers.agenda.look_within(speaker_id, _LOOK_SECONDS)
    except (VoiceDamaged, VoiceUnreadable) as error:
        log.error("document.left_out", speaker=str(speaker_id), reason=_reason(error))
        return False
    return True


def _reason(error: SpeakerRegistryError) -> str:
    return error.message
