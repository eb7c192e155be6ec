"""Where a bucket is, which tells a copy from the original. Knows nothing of what else is in a bucket.

Each object under `_place/` is a JSON that says where the bucket was when it was made a registry's own.

A copy carries everything along that tells an original from other buckets. Two registries would take it for
the same one, so a bucket that says that it is elsewhere is refused until somebody decides.

`python -m services.shared.bucket_place` makes the bucket of the settings a registry of its own.
"""

import argparse
import sys
from collections.abc import Sequence

import structlog
from pydantic import ValidationError

from services.shared.bucket import StoreUnfit
from services.shared.clock import Clock
from services.shared.domain import Record
from services.shared.facts import PlaceKey, list_several_times, parse_key
from services.shared.logs import configure_logs
from services.shared.mistyped import warn_of_unknown_variables
from services.shared.settings import LogSettings, StoreSettings, explain, without_credentials
from services.shared.store import Store, open_store
from speaker_registry.errors import SpeakerRegistryError, Unavailable

log = structlog.get_logger()

_FOLDER = "_place/"


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
    """Endpoint, bucket and prefix; or what the settings say that these are known as."""
    return settings.known_as or without_credentials(f"{settings.url} at {settings.endpoint or 'AWS'}")


def check_place(store: Store, settings: StoreSettings, clock: Clock) -> Place | None:
    """Where the bucket is, written down at the first start. None for a local folder, which people may move.

    Raises:
        BucketCopied; Unavailable.
    """
    if settings.folder:
        return None
    place = _last(store) or _put(store, settings, clock, seq=1)
    if place.where != where(settings):
        raise BucketCopied(
            f"SPEAKER_STORE_URL: the bucket at '{where(settings)}' says that it is '{place.where}'. If it is "
            "a copy, make it a registry of its own by `python -m services.shared.bucket_place`. If it is the "
            f"same bucket by another name or address, set SPEAKER_STORE_KNOWN_AS='{place.where}'"
        )
    return place


def make_own(store: Store, settings: StoreSettings, clock: Clock) -> Place:
    """From now on the bucket is where the settings say, and another one than it was copied from."""
    last = _last(store)
    return _put(store, settings, clock, seq=last.seq + 1 if last else 2)


def _last(store: Store) -> Place | None:
    listed = [stored.key for stored in list_several_times(store, _FOLDER, 2).objects]
    last = max((key for key in listed if isinstance(parse_key(key), PlaceKey)), default=None)
    if last is None:
        return None
    try:
        return Place.model_validate_json(store.get(last))
    except FileNotFoundError:  # listed a moment ago
        raise Unavailable("The object store lists an object that it does not return.") from None
    except ValidationError:
        raise StoreUnfit(f"SPEAKER_STORE_URL: the object {last} in the bucket is damaged") from None


def _put(store: Store, settings: StoreSettings, clock: Clock, *, seq: int) -> Place:
    place = Place(seq=seq, uid=clock.new_id(), where=where(settings))
    store.put(f"{_FOLDER}{seq:06d}.{place.uid}", place.to_json().encode())
    log.info("bucket.placed", where=place.where, seq=seq)
    return place


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="python -m services.shared.bucket_place",
        description="Make a copy of a bucket a registry of its own. Run it once, before the copy's first API "
        "process or worker starts.",
        epilog="It reads the settings SPEAKER_STORE_*, as those processes do. A folder needs no such thing.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 also for a folder, which needs nothing. `arguments`: those of the command
    line, if None.
    """
    _parser().parse_args(arguments)
    configure_logs()
    try:
        configure_logs(LogSettings().level)
        warn_of_unknown_variables()
        settings = StoreSettings()
        if settings.folder:
            log.info("bucket_place.not_needed", reason="SPEAKER_STORE_URL is a folder, which has no place")
            return 0
        make_own(open_store(settings), settings, Clock())
    except ValidationError as error:
        log.error("bucket_place.failed", reason=explain(error))
        return 1
    except (SpeakerRegistryError, StoreUnfit, ValueError) as error:
        log.error("bucket_place.failed", reason=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
