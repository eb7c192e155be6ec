"""Finds the pictures of clips, and asks workers to draw missing ones. This module knows no HTTP."""

from collections.abc import Iterator

from services.shared.bucket.pictures import StoredPicture, find_picture, read_picture
from services.shared.bucket.store import Store
from services.shared.bucket.stored_bytes import clip_of
from services.shared.model.pictures import Picture
from services.shared.model.records import Version
from services.shared.model.speaker import SpeakerId
from services.shared.queue.jobs import Dispatcher
from speaker_registry.errors import PicturesFailed


def find_pictures(
    store: Store, speaker_id: SpeakerId, version: Version, picture: Picture
) -> list[StoredPicture]:
    """Return the stored files of a picture. There may be several, and any of them can be used.

    Raises:
        AudioNotFound: the version has no clip. Unavailable.
    """
    clip_of(version)
    return find_picture(store, speaker_id, version.vuid, picture)


def read_pictures(store: Store, found: list[StoredPicture]) -> Iterator[tuple[StoredPicture, bytes]]:
    """Read the pictures one after the other, and leave out those that are lost or damaged.

    Raises `Unavailable`.
    """
    for stored in found:
        data = read_picture(store, stored)
        if data is not None:
            yield stored, data


def ask_for_pictures(dispatcher: Dispatcher, speaker_id: SpeakerId, version: Version) -> None:
    """Ask workers for both pictures of a version, unless they were asked already.

    Raises:
        PicturesFailed: a worker could not draw them. Unavailable.
    """
    reason = dispatcher.draw(str(speaker_id), version.vuid)
    if reason is not None:
        raise PicturesFailed(
            f"The pictures of version {version.number} of voice '{version.name}' could not be drawn. {reason}"
        )
