"""The pictures of clips in the bucket. No fact names them, so they are found by a listing. A picture that is
missing or damaged is drawn again. Knows no drawing.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from services.shared.bucket.keys import PictureKey, SpeakerId, parse_key
from services.shared.bucket.store import Store
from services.shared.model.pictures import DRAWING, Picture
from services.shared.telemetry.metrics import INTEGRITY_FAILURES

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredPicture:
    """A picture of the current drawing that the bucket has."""

    key: str
    sha256: str
    size: int


def find_picture(store: Store, speaker_id: SpeakerId, vuid: str, picture: Picture) -> list[StoredPicture]:
    """Return what the bucket has of one picture of a version.

    That is none or one. It is more if machines with different rounding errors have drawn it, and then each of
    them will do.
    """
    listing = store.list(speaker_id.pictures_prefix(vuid))
    keyed = [(stored, parse_key(stored.key)) for stored in listing.objects]
    return [
        StoredPicture(stored.key, key.sha256, stored.size)
        for stored, key in keyed
        if isinstance(key, PictureKey) and (key.drawing, key.name) == (DRAWING, picture)
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
        key = PictureKey(vuid, DRAWING, hashlib.sha256(data).hexdigest(), picture)
        store.put(speaker_id.picture_key(key), data)
