"""The pictures of clips in the bucket. No document names one, so they are found by a listing. A picture that
is missing or damaged is drawn again. This module does not know how pictures are drawn.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from services.shared.bucket.layout import PicturePath, picture_key, picture_of, version_prefix
from services.shared.bucket.store import Store
from services.shared.model.pictures import DRAWING, Picture
from services.shared.model.speaker import SpeakerId
from services.shared.telemetry.metrics import INTEGRITY_FAILURES

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredPicture:
    """A picture of the current drawing that the bucket has."""

    key: str
    sha256: str
    size: int


def find_picture(store: Store, speaker_id: SpeakerId, vuid: str, picture: Picture) -> list[StoredPicture]:
    """Return the stored files of one picture of a version.

    Usually there is at most one. There are several if machines with different rounding errors have drawn the
    picture, and then any of them can be used.
    """
    listing = store.list(version_prefix(speaker_id, vuid))
    found = [(stored, picture_of(stored.key)) for stored in listing.objects]
    return [
        StoredPicture(stored.key, path.sha256, stored.size)
        for stored, path in found
        if path is not None and (path.drawing, path.picture) == (DRAWING, picture)
    ]


def read_picture(store: Store, stored: StoredPicture) -> bytes | None:
    """Return the bytes of a picture, or None if they are lost or damaged."""
    try:
        data = store.get(stored.key)
    except FileNotFoundError:
        return None
    if hashlib.sha256(data).hexdigest() == stored.sha256:
        return data
    log.error("integrity.damaged", key=stored.key)
    INTEGRITY_FAILURES.labels("damaged").inc()
    return None


def store_pictures(store: Store, speaker_id: SpeakerId, vuid: str, drawn: Mapping[Picture, bytes]) -> None:
    """Store the pictures of a version. Storing them again does no harm. Raises `Unavailable`."""
    for picture, data in drawn.items():
        path = PicturePath(DRAWING, hashlib.sha256(data).hexdigest(), picture)
        store.put(picture_key(speaker_id, vuid, path), data)
