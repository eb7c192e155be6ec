"""Records in a bucket where the bucket is, which tells a copy from the original. This module knows nothing of
what else is in a bucket. It treats a local folder as a bucket.

Each object under `_place/` is a JSON that says where the bucket was when it was made a registry's own. The
one with the highest number counts. Objects that are damaged or not ours are ignored.

A copy carries along everything that tells the original from other buckets, so two registries would take both
for the same bucket. Therefore a bucket that says that it is elsewhere is refused until an operator decides.

`python -m services.registry_api adopt-bucket` makes the bucket of the settings a registry of its own.
"""

from dataclasses import dataclass

import structlog

from services.shared.bucket.connection import StoreUnfit
from services.shared.bucket.facts import commit, list_several_times, read_record
from services.shared.bucket.keys import PLACE_FOLDER, PlaceKey, parse_key
from services.shared.bucket.store import ObjectUnavailable, Store, StoredObject
from services.shared.configuration.settings import StoreSettings, without_credentials
from services.shared.model.clock import Clock
from services.shared.model.domain import Record
from services.shared.telemetry.metrics import INTEGRITY_FAILURES

log = structlog.get_logger()

_LAST_SEQ = 10**6 - 1


class BucketCopied(StoreUnfit):
    """The bucket says that it is elsewhere: it is a copy, or it has another name or address now."""


class Place(Record):
    """The JSON of an object under `_place/`, which says where the bucket was."""

    seq: int
    uid: str
    where: str

    @property
    def suffix(self) -> str:
        """Return the suffix that a copy which was made a registry's own adds to the identity that it was
        copied with. It is empty for an original.
        """
        return f"-{self.uid}" if self.seq > 1 else ""


def where(settings: StoreSettings) -> str:
    """Return the bucket's place: endpoint, bucket and prefix, or the folder. If the settings say by which
    name it is known, return that instead.
    """
    if settings.known_as:
        return settings.known_as
    if settings.folder:
        return settings.folder.resolve().as_uri()
    return without_credentials(f"{settings.url} at {settings.endpoint or 'AWS'}")


def check_place(store: Store, settings: StoreSettings, clock: Clock) -> Place:
    """Return where the bucket is, after checking it against the settings. The first start records it.

    Raises:
        BucketCopied: the bucket says that it is elsewhere.
        StoreUnfit: the bucket's own record of its place is damaged.
        Unavailable: the store does not answer.
    """
    found = _find(store)
    place = found.place or _put(store, settings, clock, seq=1)
    if place.where != where(settings):
        raise BucketCopied(
            f"SPEAKER_STORE_URL: the bucket at '{where(settings)}' says that it is '{place.where}'. If it is "
            "a copy, make it a registry of its own by `python -m services.registry_api adopt-bucket`. If it "
            "is the same bucket by another name or address, set "
            f"SPEAKER_STORE_KNOWN_AS='{place.where}'{found.note}"
        )
    return place


def make_own(store: Store, settings: StoreSettings, clock: Clock) -> Place:
    """Record that the bucket is where the settings say, which makes it distinct from the one it was copied
    from.

    Raises:
        StoreUnfit: an object that is not ours comes after every other one.
    """
    listed = _listed(store)
    highest = listed[-1][0].seq if listed else 1
    # No number follows the last one. Of several objects with that number, those with later ids come later.
    place = _put(store, settings, clock, seq=min(highest + 1, _LAST_SEQ))
    counts = _find(store).place
    if counts is not None and counts != place:
        raise StoreUnfit(
            f"SPEAKER_STORE_URL: the object {PlaceKey(counts.seq, counts.uid)} in the bucket "
            "comes after every other: delete it, and run this again"
        )
    return place


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of reading the objects under `_place/`."""

    place: Place | None
    """The highest undamaged place, or None if there are no places at all."""
    left_out: tuple[str, ...]
    """The keys of the objects above `place` that are damaged or cannot be read."""

    @property
    def note(self) -> str:
        """Return the part of an error message that names the objects left out; empty if there are none."""
        return (
            f". Damaged or unreadable, and so left out: {', '.join(self.left_out)}" if self.left_out else ""
        )


def _find(store: Store) -> _Found:
    """Find the place that counts. Raises `StoreUnfit` if there are places and all are damaged or unreadable,
    because a copy must not pass for the original.
    """
    left_out: list[str] = []
    for key, stored in reversed(_listed(store)):
        place = _read(store, key, stored)
        if place is not None:
            return _Found(place, tuple(left_out))
        left_out.append(stored.key)
    if left_out:
        raise StoreUnfit(
            "SPEAKER_STORE_URL: the bucket does not say where it is, because these objects are damaged or "
            f"cannot be read: {', '.join(left_out)}. Restore them from a backup. Or, if the bucket is a copy "
            "of another registry's, run `python -m services.registry_api adopt-bucket`; if it is not, delete "
            "them"
        )
    return _Found(None, ())


def _listed(store: Store) -> list[tuple[PlaceKey, StoredObject]]:
    """Return all places, lowest first. They come from two listings, because a single one may leave out the
    highest.
    """
    objects = list_several_times(store, PLACE_FOLDER, 2).objects
    ours = [(key, stored) for stored in objects if isinstance(key := parse_key(stored.key), PlaceKey)]
    return sorted(ours, key=lambda one: (one[0].seq, one[0].uid))


def _read(store: Store, key: PlaceKey, stored: StoredObject) -> Place | None:
    """Read a place. Returns None, and logs the reason, if it is damaged or cannot be read."""
    try:
        body = read_record(store, stored)
        place = Place.model_validate_json(body or b"")
        if (place.seq, place.uid) != (key.seq, key.uid):
            raise ValueError("the record is of another place than its key says")
    except (ValueError, ObjectUnavailable) as error:
        log.error("place.damaged", key=stored.key, error=str(error))
        INTEGRITY_FAILURES.labels("record").inc()
        return None
    return place


def _put(store: Store, settings: StoreSettings, clock: Clock, *, seq: int) -> Place:
    place = Place(seq=seq, uid=clock.new_id(), where=where(settings))
    commit(store, PlaceKey(place.seq, place.uid), place.to_json().encode())
    log.info("bucket.placed", where=place.where, seq=seq)
    return place
