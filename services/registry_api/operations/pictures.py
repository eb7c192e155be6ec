"""Finds the pictures of clips, and asks the workers for those that are missing. Knows no HTTP."""

from collections.abc import Iterator

from services.shared.bucket.blobs import clip_of
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.pictures import StoredPicture, find_picture, read_picture
from services.shared.bucket.store import Store
from services.shared.model.domain import SpeakerVersion
from services.shared.model.pictures import Picture
from services.shared.registry.parts import Dispatcher
from speaker_registry.errors import PicturesFailed


class Pictures:
    """The pictures of clips. All methods may raise `Unavailable`."""

    def __init__(self, store: Store, dispatcher: Dispatcher) -> None:
        self._store = store
        self._dispatcher = dispatcher

    def find(self, speaker_id: SpeakerId, version: SpeakerVersion, picture: Picture) -> list[StoredPicture]:
        """Return what the bucket has of a picture: none, one, or several of which each will do.

        Raises:
            AudioNotFound: the version has no clip.
        """
        clip_of(version)
        return find_picture(self._store, speaker_id, version.vuid, picture)

    def read(self, found: list[StoredPicture]) -> Iterator[tuple[StoredPicture, bytes]]:
        """Read the pictures one after the other, and leave out those that are lost or damaged."""
        for stored in found:
            data = read_picture(self._store, stored)
            if data is not None:
                yield stored, data

    def ask(self, speaker_id: SpeakerId, version: SpeakerVersion) -> None:
        """Ask workers for both pictures of a version, unless they were asked already.

        Raises:
            PicturesFailed: a worker could not draw them.
        """
        if not self._dispatcher.draw(str(speaker_id), version.vuid):
            raise PicturesFailed(
                f"The pictures of version {version.number} of voice '{version.record.name}' could not be "
                "drawn. The worker's log says why. Workers try again when they are asked a day later."
            )
