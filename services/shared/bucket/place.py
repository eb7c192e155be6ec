"""Where a bucket is, which tells a copy from the original. Knows nothing of what else is in a bucket. A local
folder is a bucket like any other here.

Each object under `_place/` is a JSON that says where the bucket was when it was made a registry's own. The
one with the highest number counts. One that is damaged, or that somebody else put there, says nothing.

A copy carries everything along that tells an original from other buckets. Two registries would take it for
the same one, so a bucket that says that it is elsewhere is refused until somebody decides.

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
    """The bucket says that it is elsewhere: it is a copy, or has another name or address now."""


class Place(Record):
    """Where a bucket was: the JSON of the object."""

    seq: int
    uid: str
    where: str

    @property
    def suffix(self) -> str:
        """What a copy that was made a registry's own adds to the identity that it was copied with."""
        return f"-{self.uid}" if self.seq > 1 else ""


def where(settings: StoreSettings) -> str:
    """Endpoint, bucket and prefix, or the folder; or what the settings say that these are known as."""
    if settings.known_as:
        return settings.known_as
    if settings.folder:
        return settings.folder.resolve().as_uri()
    return without_credentials(f"{settings.url} at {settings.endpoint or 'AWS'}")


def check_place(store: Store, settings: StoreSettings, clock: Clock) -> Place:
    """Where the bucket is, written down at the first start.

    Raises:
        BucketCopied; StoreUnfit: what it says is damaged; Unavailable.
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
    """From now on the bucket is where the settings say, and another one than it was copied from.

    Raises:
        StoreUnfit: an object that somebody else put there comes after every other.
    """
    listed = _listed(store)
    highest = listed[-1][0].seq if listed else 1
    # Behind the last number there is none: of several with it, those of later ids come later.
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
    """What the objects under `_place/` say."""

    place: Place | None
    """The highest one that is whole. None: there is none at all."""
    left_out: tuple[str, ...]
    """Keys of those above it that are damaged or cannot be read."""

    @property
    def note(self) -> str:
        """For an error message."""
        return (
            f". Damaged or unreadable, and so left out: {', '.join(self.left_out)}" if self.left_out else ""
        )


def _find(store: Store) -> _Found:
    """Raises `StoreUnfit` where there are some, and none of them is whole: a copy must not pass for the
    original.
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
    """Lowest first. From two listings: one may leave out the highest."""
    objects = list_several_times(store, PLACE_FOLDER, 2).objects
    ours = [(key, stored) for stored in objects if isinstance(key := parse_key(stored.key), PlaceKey)]
    return sorted(ours, key=lambda one: (one[0].seq, one[0].uid))


def _read(store: Store, key: PlaceKey, stored: StoredObject) -> Place | None:
    """None if it is damaged or cannot be read, which is logged."""
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
