"""A bucket as bad as S3 may be: strongly consistent, but a put may fail, succeed unanswered, or land late.
And about every object the store may lie once.

Objects are dated to the second, as S3 does it, and the clock that dates listings is up to a second behind. A
request is void 15 minutes after it was signed, also S3's rule: it bounds how late anything can land. Knows
keys as text only.
"""

import builtins
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from services.shared.bucket.store import (
    Listing,
    Moved,
    Object,
    ObjectUnavailable,
    Skips,
    StoredObject,
    TakeListing,
    check_key,
    check_prefix,
    merged,
)
from speaker_registry.errors import Unavailable
from tests.simulation.scheduler import Killed, current, pause

LATE = "landed late: "
SIGNED_SECONDS = 900.0

Found = TypeVar("Found")
Result = TypeVar("Result")


class Nature(Protocol):
    """The world, as far as the store needs it."""

    creates_only: bool
    """The store has conditional writes."""
    cursed: set[str]
    """Keys of objects that cannot be read."""
    store_clock_behind: float
    """Seconds."""

    @property
    def time(self) -> float: ...
    def happens(self, fault: str) -> bool: ...
    def within(self, low: float, high: float) -> float: ...
    def later(self, seconds: float, what: str, do: Callable[[], None]) -> None: ...
    def note(self, text: str) -> None: ...


class PerfectStore:
    """Implements the services' `Store` without a fault. `clock`: the store's, in Unix seconds."""

    is_local = False

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, datetime]] = {}

    def put(self, key: str, data: bytes) -> None:
        self._objects[check_key(key)] = (data, self._now())

    def drop(self, key: str, data: bytes) -> None:
        """Somebody else puts an object here, under any name."""
        self._objects[key] = (data, self._now())

    def damage(self, key: str) -> None:
        """A bad disk: the last quarter of an object reads as zeros from now on."""
        data, date = self._objects[key]
        kept = len(data) * 3 // 4
        self._objects[key] = (data[:kept] + bytes(len(data) - kept), date)

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def get(self, key: str) -> bytes:
        try:
            return self._objects[check_key(key)][0]
        except KeyError:
            raise FileNotFoundError("no such object") from None

    def read(self, key: str) -> Object:
        data = self.get(key)
        return Object(data, _etag_of(data))

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        there = _etag_of(self._objects[key][0]) if key in self._objects else None
        if there != etag:
            raise Moved
        self.put(key, data)
        return _etag_of(data)

    def now(self) -> datetime:
        return self._now()

    def create(self, key: str, data: bytes) -> bool:
        if key in self._objects:
            return False
        self.put(key, data)
        return True

    def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        return self._list(prefix)

    def _list(self, prefix: str) -> Listing:
        found = sorted(key for key in self._objects if key.startswith(prefix))
        objects = tuple(StoredObject(key, len(self._objects[key][0]), self._objects[key][1]) for key in found)
        return Listing(objects, self._now())

    def address(self, key: str, seconds: int) -> str | None:
        return None

    def listings(self, prefix: str, skips: Skips = lambda _: False) -> Iterator[tuple[str, TakeListing]]:
        for folder in self.folders(prefix):
            listing = self._list(f"{prefix}{folder}/")  # whatever it is called
            yield folder, partial(_without, listing, skips)

    def folders(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        inside = (key[len(prefix) :] for key in self._objects if key.startswith(prefix))
        return sorted({rest.partition("/")[0] for rest in inside if "/" in rest})

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    def check(self) -> None:
        pass

    def probe(self) -> None:
        pass

    def sweep_temporary(self, older_than: timedelta) -> int:
        return 0

    def _now(self) -> datetime:
        return datetime.fromtimestamp(int(self._clock()), UTC)


def _etag_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _without(listing: Listing, skips: Skips) -> Listing:
    return replace(listing, objects=tuple(one for one in listing.objects if not skips(one.key)))


class ModelledStore:
    """Implements the services' `Store`, for actors."""

    is_local = False

    def __init__(self, nature: Nature, truth: PerfectStore) -> None:
        self._nature = nature
        self._truth = truth
        self.on_put: Callable[[str], None] = lambda key: None
        """Called when a put is asked for, whatever comes of it."""
        self.on_delete: Callable[[str], None] = lambda key: None
        """Called just before an object goes."""
        self._lied_about: set[str] = set()

    def put(self, key: str, data: bytes) -> None:
        self.on_put(key)
        self._write(f"put {key}", lambda: self._truth.put(key, data))

    def create(self, key: str, data: bytes) -> bool | None:
        if not self._nature.creates_only:
            self._call("probe conditional writes")
            return None
        return self._write(f"create {key}", lambda: self._truth.create(key, data))

    def _write(self, what: str, land: Callable[[], Result]) -> Result:
        signed_at = self._nature.time
        try:
            pause(what)
        except Killed:
            if self._nature.happens("store_lands_late"):
                self._land_late(what, land, signed_at)
            raise
        if self._nature.time - signed_at > SIGNED_SECONDS:
            raise self._failure("its signature is void")
        if self._nature.happens("store_refuses"):
            raise self._failure("not done")
        if self._nature.happens("store_lands_late"):
            self._land_late(what, land, signed_at)
            raise self._failure("it lands later")
        result = land()
        self._may_lose_the_reply()
        return result

    def get(self, key: str) -> bytes:
        self._call(f"get {key}")
        data = self._truth.get(key)
        if key in self._nature.cursed:
            self._nature.note("   store fails: not this one")
            raise ObjectUnavailable("Not this one.", retry_after_seconds=60)
        if self._nature.happens("store_hides") and self._may_lie(key):
            raise FileNotFoundError("no such object")
        return data

    def read(self, key: str) -> Object:
        data = self.get(key)
        return Object(data, _etag_of(data))

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        self.on_put(key)
        return self._write(f"swap {key}", lambda: self._truth.swap(key, data, etag=etag))

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._nature.time - self._nature.store_clock_behind, UTC)

    def list(self, prefix: str) -> Listing:
        self._call(f"list {prefix}")
        return self._as_told(self._truth.list(prefix))

    def _as_told(self, listing: Listing) -> Listing:
        objects = self._perhaps_without_one(listing.objects, lambda stored: stored.key)
        return replace(listing, objects=tuple(objects), taken_at=self.now())

    def address(self, key: str, seconds: int) -> str | None:
        return None

    def listings(self, prefix: str, skips: Skips = lambda _: False) -> Iterator[tuple[str, TakeListing]]:
        for folder, listing in merged(self._walk(prefix), self._walk(prefix)):
            yield folder, partial(_without, listing, skips)

    def _walk(self, prefix: str) -> Iterator[tuple[str, Listing]]:
        """One page at a time, each of one folder."""
        told = set(self.folders(prefix))
        for folder, take in self._truth.listings(prefix):
            if folder in told:
                self._call(f"listings {prefix}{folder}/")
                yield folder, self._as_told(take())

    def folders(self, prefix: str) -> builtins.list[str]:
        self._call(f"folders {prefix}")
        return self._perhaps_without_one(self._truth.folders(prefix), lambda folder: f"{prefix}{folder}/")

    def delete(self, keys: Iterable[str]) -> None:
        """One after the other: a crash in between leaves the rest."""
        for key in keys:
            self._call(f"delete {key}")
            self.on_delete(key)
            self._truth.delete([key])
            self._may_lose_the_reply()

    def check(self) -> None:
        self._call("check")

    def probe(self) -> None:
        self._call("probe")

    def sweep_temporary(self, older_than: timedelta) -> int:
        self._call("sweep")
        return self._truth.sweep_temporary(older_than)

    def _call(self, what: str) -> None:
        pause(what)
        if self._nature.happens("store_refuses"):
            raise self._failure("not done")

    def _perhaps_without_one(
        self, found: Sequence[Found], key_of: Callable[[Found], str]
    ) -> builtins.list[Found]:
        """Return the listing of what was found, perhaps without one object."""
        told = builtins.list(found)
        if told and self._nature.happens("store_omits"):
            hidden = told[int(self._nature.within(0, len(told)))]
            if self._may_lie(key_of(hidden)):
                told.remove(hidden)
        return told

    def _may_lie(self, key: str) -> bool:
        """Return whether the store has told only the truth about an object so far. From now on it has not."""
        actor = current()
        if actor is None or key in self._lied_about:
            return False
        self._lied_about.add(key)
        actor.lied_to = True
        self._nature.note(f"   store lies: there is no {key}")
        return True

    def _may_lose_the_reply(self) -> None:
        if self._nature.happens("store_forgets_to_answer"):
            raise self._failure("done, but not answered")

    def _land_late(self, what: str, land: Callable[[], Any], signed_at: float) -> None:
        left = max(0.0, signed_at + SIGNED_SECONDS - self._nature.time)

        def land_if_it_may() -> None:
            with suppress(Moved):
                land()

        self._nature.later(self._nature.within(0, left), f"{LATE}{what}", land_if_it_may)

    def _failure(self, how: str) -> Unavailable:
        self._nature.note(f"   store fails: {how}")
        return Unavailable("The object store is not available.", retry_after_seconds=5)
