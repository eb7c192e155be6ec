"""The object store: immutable objects under keys, in an S3-compatible bucket or a local folder.

The promises are the same on both: an object is durable once `put` returns, `get` returns whole objects, and
`list` is complete and shows what was put before. This module knows nothing of speakers; `facts` says what
keys mean.

Names that start with a dot at the top belong to the store itself and are never listed.
"""

import builtins
import errno
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby, islice, starmap, zip_longest
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import uuid4

import httpx
import obstore
import structlog
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PreconditionError,
)
from obstore.store import LocalStore, S3Store

from services.shared.bucket.connection import (
    BOTO3_ERRORS,
    REQUEST_SECONDS,
    RETRY_SECONDS,
    AnyKeys,
    BucketClock,
    connect,
    describe,
)
from services.shared.bucket.connection import StoreUnfit as StoreUnfit  # noqa: PLC0414 - callers see one module
from services.shared.bucket.connection import prepare_bucket as prepare_bucket  # noqa: PLC0414
from services.shared.bucket.durable_folder import DurableFolder, Skips, etag_of
from services.shared.configuration.settings import StoreSettings
from services.shared.telemetry import tracing
from services.shared.telemetry.metrics import STORE_SECONDS
from speaker_registry.errors import Unavailable

if TYPE_CHECKING:
    from obstore import PutMode

log = structlog.get_logger(__name__)

Found = TypeVar("Found")

_PART = r"(?!\.\.?(?:/|$))[A-Za-z0-9._-]{1,255}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_KEY_BYTES = 1000
"""The length limit of a key. S3 allows 1024 bytes, the bucket's prefix included."""

RETRY_AFTER_SECONDS = 5.0
CHECK_SECONDS = 3.0
"""The time limit of a readiness check, which has to answer before its caller gives up."""

PROBES = ".probe/"
PROBED = 20
OLD_PROBE = timedelta(hours=1)
MAX_CLOCK_DIFFERENCE = timedelta(minutes=5)
"""The largest accepted difference between a store's `Date` and the times of its objects. Comparing the two
shows which objects are young.
"""

DATED_WITHIN = timedelta(seconds=2)
"""The difference that is allowed between a store's two clocks: the one that dates its objects, which may
belong to another machine or to a file system, and the one that dates its listings.
"""

_REASONS = (
    re.compile(r"status code: (\d{3})"),
    re.compile(r"<Code>(\w{1,60})</Code>"),
    re.compile(r"kind: (\w+)"),
    re.compile(r"incorrectly configured region"),
)
"""The parts of obstore's messages that are logged. The rest of a message names keys, and so persons."""


_SENTINEL = ".sentinel"
"""An object that belongs to the store itself. While it can be read, a failure to access another object
concerns that object alone.
"""
OBJECT_RETRY_AFTER_SECONDS = 60.0


class ObjectUnavailable(Unavailable):
    """The store answers but fails for this one object: for example, the object is archived, its disk block is
    bad, or it belongs to another owner. Operations on other objects must not wait for that.
    """


class Moved(Exception):
    """The condition of a swap does not hold. An earlier try of the same caller may be the reason."""


@dataclass(frozen=True, slots=True)
class Object:
    """A whole object as it was read, with the ETag that a swap of it needs."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size: int
    last_modified: datetime
    """The object's time by the store's clock."""


@dataclass(frozen=True, slots=True)
class Listing:
    objects: tuple[StoredObject, ...]
    """The objects found, sorted by key."""
    taken_at: datetime
    """The time by the store's clock before the first page was listed. It is never ahead, so ages computed
    with it err on the young side.
    """


TakeListing = Callable[[], Listing]


def _nothing(_: str) -> bool:
    """Leave nothing out of a listing. This is a `Skips`."""
    return False


def _is_our_own(key: str) -> bool:
    """Leave the store's own objects out of a listing. This is a `Skips`."""
    return key.startswith(".")


class Store(Protocol):
    """Stores immutable objects under keys.

    Keys are parts of `[A-Za-z0-9._-]` joined by `/`. A prefix ends with `/` or is empty. Any other key or
    prefix raises ValueError.

    Every method raises `Unavailable` when the store does not do its part in time. `get` and `delete` raise
    `ObjectUnavailable` if the store still serves other objects.
    """

    is_local: bool
    """True if the store is on this machine. Reading then costs processor time and hardly ever waits."""

    def put(self, key: str, data: bytes) -> None:
        """Store an object. It is durable once this returns. A key is never put again with other content."""

    def create(self, key: str, data: bytes) -> bool | None:
        """Store an object unless there is one under this key already. Of concurrent calls, only one stores.

        Returns whether the object was stored, or None if this store has no conditional writes; then nothing
        was stored. After a lost reply the result may be False although this call stored the object.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return the whole object. Raises FileNotFoundError if there is none."""
        ...

    def address(self, key: str, seconds: int) -> str | None:
        """Return a URL at which anyone can get the object for so many seconds, or None if the store gives
        none. Whether the object exists is not checked.
        """
        ...

    def list(self, prefix: str) -> Listing:
        """List everything under a prefix, including what was put a moment ago."""
        ...

    def listings(self, prefix: str, skips: Skips = _nothing) -> Iterator[tuple[str, TakeListing]]:
        """Iterate over everything under a prefix, folder by folder.

        Each item is the name of an immediate folder, in no order, with a function that lists the folder's
        content. In a bucket this listing was taken already, because one request serves many folders.
        Everything is requested twice there, so an object that one answer leaves out is still listed. In a
        local folder the function costs as much as `list`, so several threads may call it.

        Args:
            skips: says which keys are left out. The keys it gets begin with `prefix`. A folder that holds
                nothing else may be missing.
        """
        ...

    def folders(self, prefix: str) -> builtins.list[str]:
        """Return the names of the immediate folders under a prefix that hold anything."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. Accepts any key that was listed; a missing object is no error. If one object cannot
        be removed, the rest are removed all the same.
        """

    def check(self) -> None:
        """Return within seconds if the store answers."""

    def probe(self) -> None:
        """Raise `StoreUnfit` unless the store is consistent: puts and deletes have to show at once."""

    def sweep_temporary(self, older_than: timedelta) -> int:
        """Remove the files that interrupted writes left, and return their number. A bucket keeps no such
        files.
        """
        ...


class ObjectStore:
    """A `Store` on obstore. Built by `open_store`."""

    def __init__(
        self,
        client: LocalStore | S3Store,
        *,
        impatient: LocalStore | S3Store,
        clock: Callable[[], datetime],
        folder: DurableFolder | None = None,
        any_keys: AnyKeys | None = None,
    ) -> None:
        self._client = client
        self._impatient = impatient
        """A client of the same store that gives up at once."""
        self._clock = clock
        """The store's clock."""
        self.is_local = folder is not None
        self._folder = folder
        """The folder that does all writing to a local store, because obstore never syncs."""
        self._any_keys = any_keys
        """The client that lists a bucket in which obstore met a key that it refuses."""

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._translating("put"):
            if self._folder:
                self._folder.put(key, data)
            else:
                # In one request: the parts of an interrupted multipart upload would stay, and are not listed.
                obstore.put(self._client, key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> bool | None:
        check_key(key)
        if self._folder:
            with self._translating("put"):
                return self._folder.create(key, data)
        probe = f"{PROBES}{uuid4().hex}/create"
        try:
            if not self._creates(probe, data) or self._creates(probe, data):
                return None
        finally:
            self.delete([probe])
        return self._creates(key, data)

    def _creates(self, key: str, data: bytes) -> bool:
        """Write on condition that the key is free, and return whether that wrote. A store without conditional
        writes always writes.
        """
        with self._translating("put"):
            try:
                obstore.put(self._client, key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, NotSupportedError):
                return False
        return True

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._translating("get"):
            if self._folder:
                return self._folder.read(key)
            result = obstore.get(self._client, key)
            return _whole(bytes(result.bytes()), result.meta["size"])

    def read(self, key: str) -> Object:
        """Return the whole object with its ETag. Raises as `get` does."""
        check_key(key)
        with self._translating("get"):
            if self._folder:
                data = self._folder.read(key)
                return Object(data, etag_of(data))
            result = obstore.get(self._client, key)
            return Object(_whole(bytes(result.bytes()), result.meta["size"]), _given(result.meta["e_tag"]))

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        """Replace an object while it has this ETag; None: while there is none. Returns the new ETag.

        Of several callers that read one ETag, one replaces the object.

        Raises:
            Moved: the condition does not hold.
            Unavailable: the object may have been replaced, may still be, or not.
        """
        check_key(key)
        with self._translating("swap"):
            if not self._folder:
                return self._swap_in_bucket(key, data, etag)
            if not self._folder.swap(key, data, etag):
                raise Moved
            return etag_of(data)

    def _swap_in_bucket(self, key: str, data: bytes, etag: str | None) -> str:
        mode: PutMode = "create" if etag is None else {"e_tag": etag}
        try:
            return _given(obstore.put(self._client, key, data, mode=mode, use_multipart=False)["e_tag"])
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            raise Moved from None

    def address(self, key: str, seconds: int) -> str | None:
        check_key(key)
        if not isinstance(self._client, S3Store):
            return None
        with self._translating("sign"):
            return obstore.sign(self._client, "GET", key, timedelta(seconds=seconds))

    def folders(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        with self._translating("list"):
            if self._folder:
                self._folder.check()
                names = sorted(self._folder.folders(prefix))
            else:
                found = _under(prefix, self._found_folders(prefix))
                names = sorted(path.removesuffix("/").rpartition("/")[2] for path in found)
        return names if prefix else [name for name in names if not name.startswith(".")]

    def _found_folders(self, prefix: str) -> Iterable[str]:
        try:
            return obstore.list_with_delimiter(self._client, prefix or None)["common_prefixes"]
        except InvalidPathError:
            assert self._any_keys
            return self._any_keys.folders(prefix)

    def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        return self._list(prefix, _nothing if prefix else _is_our_own)

    def _list(self, prefix: str, skips: Skips) -> Listing:
        with self._translating("list"):
            self._check_folder()
            taken_at = self._clock()
            listing = _listing(self._found(prefix, skips), taken_at)
            if self._any_keys and any(_may_be_marker(stored, prefix) for stored in listing.objects):
                # obstore names the marker of a folder, `a/`, as `a`, and could not delete it by that name.
                named = _under(prefix, self._any_keys.objects(prefix), key=lambda found: found[0])
                objects = starmap(StoredObject, named)
                return _listing((stored for stored in objects if not skips(stored.key)), taken_at)
            return listing

    def listings(self, prefix: str, skips: Skips = _nothing) -> Iterator[tuple[str, TakeListing]]:
        check_prefix(prefix)
        if self._folder:
            for name in self._in_portions(self._folder.folders(prefix)):
                yield name, partial(self._list, f"{prefix}{name}/", skips)
        else:
            for name, listing in merged(self._walk(prefix, skips), self._walk(prefix, skips)):
                yield name, partial(_same, listing)

    def _walk(self, prefix: str, skips: Skips) -> Iterator[tuple[str, Listing]]:
        with self._translating("list"):
            taken_at = self._clock()
        # A folder's objects follow one another: a bucket sorts keys.
        objects = self._in_portions(self._found(prefix, skips))
        for folder, found in groupby(objects, key=lambda stored: _folder_of(stored.key, prefix)):
            yield folder, _listing(found, taken_at)

    def _in_portions(self, found: Iterator[Found]) -> Iterator[Found]:
        """Yield the same items, fetched 1,000 at a time, because each portion may fail."""
        while True:
            with self._translating("list"):
                self._check_folder()
                portion = builtins.list(islice(found, 1000))
            if not portion:
                return
            yield from portion

    def _found(self, prefix: str, skips: Skips) -> Iterator[StoredObject]:
        if self._folder:
            # obstore is not used here: one file whose name it refuses would hide all the rest.
            for key, status in self._folder.files(prefix, skips):
                yield StoredObject(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
            return
        found = _under(prefix, self._found_in_bucket(prefix), key=lambda stored: stored.key)
        yield from (stored for stored in found if not skips(stored.key))

    def _found_in_bucket(self, prefix: str) -> Iterator[StoredObject]:
        last = ""
        try:
            for page in obstore.list(self._client, prefix or None, chunk_size=1000):
                for meta in page:
                    last = meta["path"]
                    yield StoredObject(last, meta["size"], meta["last_modified"])
        except InvalidPathError:
            assert self._any_keys
            yield from starmap(StoredObject, self._any_keys.objects(prefix, after=last))

    def delete(self, keys: Iterable[str]) -> None:
        keys = builtins.list(keys)
        try:
            self._delete(keys)
        except ObjectUnavailable:
            self._delete_one_by_one(keys)

    def _delete_one_by_one(self, keys: Iterable[str]) -> None:
        failure: ObjectUnavailable | None = None
        for key in keys:
            try:
                self._delete([key])
            except ObjectUnavailable as error:
                failure = error
        if failure is not None:
            raise failure

    def _delete(self, keys: builtins.list[str]) -> None:
        with self._translating("delete"):
            if self._folder:
                self._folder.delete([_check_listed(key) for key in keys])
                return
            obstore.delete(self._client, [key for key in keys if _is_path(key)])
            for key in keys:
                if not _is_path(key):
                    assert self._any_keys
                    self._any_keys.delete(key)

    def check(self) -> None:
        with self._translating("check"):
            self._check_folder()
            obstore.list(self._impatient, ".check/").collect()

    def probe(self) -> None:
        self.put(_SENTINEL, b"{}")
        _probe(self)

    def sweep_temporary(self, older_than: timedelta) -> int:
        with self._translating("sweep"):
            return self._folder.sweep(older_than) if self._folder else 0

    def _check_folder(self) -> None:
        """Raise OSError if a local folder is not there. An empty mount point must not pass for a store that
        has lost everything.
        """
        if self._folder:
            self._folder.check()

    @contextmanager
    def _translating(self, operation: str) -> Iterator[None]:
        """Raise our errors for obstore's. Keys stay out of messages and logs: they hold names."""
        began, result = perf_counter(), "failed"
        with tracing.span(f"store.{operation}", kind="client"):
            try:
                yield
                result = "ok"
            except Moved:
                result = "moved"
                raise
            except (BaseError, OSError, httpx.HTTPError, *BOTO3_ERRORS) as error:
                if operation == "get" and self._says_missing(error):
                    result = "missing"
                    raise FileNotFoundError("no such object") from None
                log.error("store.failed", operation=operation, reason=_reason(error))
                unavailable = self._unavailable(operation)
                unavailable.add_note(f"{operation}: {_reason(error)}")  # for operators
                raise unavailable from None
            finally:
                STORE_SECONDS.labels(operation, result).observe(perf_counter() - began)

    def _unavailable(self, operation: str) -> Unavailable:
        """Return the error that callers get for a failure: one of the store, or one of a single object."""
        if operation in {"get", "delete"} and self._serves_others():
            return ObjectUnavailable(
                "The object store does not give access to one object.",
                retry_after_seconds=OBJECT_RETRY_AFTER_SECONDS,
            )
        return Unavailable("The object store is not available.", retry_after_seconds=RETRY_AFTER_SECONDS)

    def _serves_others(self) -> bool:
        try:
            obstore.get(self._impatient, _SENTINEL).bytes()
        except (BaseError, OSError):
            return False
        return True

    def _says_missing(self, error: Exception) -> bool:
        """Return whether the object is missing, and not the bucket or folder. obstore raises the same error
        for both.
        """
        if not isinstance(error, FileNotFoundError):
            return False
        if self._folder:
            return self._folder.is_there()
        return "<Code>NoSuchKey</Code>" in str(error)


def _may_be_marker(stored: StoredObject, prefix: str) -> bool:
    """Return whether the object may be a folder's marker. Consoles put an empty object `a/` when a folder is
    made by hand. The registry puts no empty objects.
    """
    return stored.size == 0 or not stored.key.startswith(prefix)


def _same(listing: Listing) -> Listing:
    return listing


def _listing(found: Iterable[StoredObject], taken_at: datetime) -> Listing:
    return Listing(tuple(sorted(found, key=lambda stored: stored.key)), taken_at)


def merged(*walks: Iterator[tuple[str, Listing]]) -> Iterator[tuple[str, Listing]]:
    """Yield each folder with everything that any walk found in it. The walks pass the same folders in much
    the same order.
    """
    waiting: dict[str, Listing] = {}
    for step in zip_longest(*walks):
        for folder, listing in filter(None, step):
            if folder in waiting:
                yield folder, together([waiting.pop(folder), listing])
            else:
                waiting[folder] = listing
    yield from waiting.items()


def together(listings: Sequence[Listing]) -> Listing:
    """Merge several listings of one prefix. The result holds every object that any of them has, and the date
    of the first.
    """
    objects = {stored.key: stored for listing in listings for stored in listing.objects}
    return Listing(tuple(objects[key] for key in sorted(objects)), listings[0].taken_at)


def _folder_of(key: str, prefix: str) -> str:
    """Return the immediate folder under a prefix that a key is in, or an empty text if it is in none."""
    return key[len(prefix) :].rpartition("/")[0].partition("/")[0]


def check_key(key: str) -> str:
    """Return the key. Raises ValueError if it is not one."""
    if len(key) >= MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise ValueError(f"not a key: {key[:80]!a}")
    return key


def _check_listed(key: str) -> str:
    """Return the key of a listed file, which any program may have put there. Raises ValueError if the key
    leads elsewhere.
    """
    if "\0" in key or _has_odd_part(key):
        raise ValueError(f"not a key: {key[:80]!a}")
    return key


def _is_path(key: str) -> bool:
    """Return whether obstore accepts a key."""
    return not _CONTROL.search(key) and not _has_odd_part(key)


def _has_odd_part(key: str) -> bool:
    return any(part in {"", ".", ".."} for part in key.split("/"))


def check_prefix(prefix: str) -> None:
    if prefix and not (prefix.endswith("/") and check_key(prefix[:-1])):
        raise ValueError(f"a prefix ends with '/': {prefix[:80]!a}")


def open_store(settings: StoreSettings) -> ObjectStore:
    """Open the store that the settings name. A local folder is made; a bucket is not yet contacted.

    Raises:
        StoreUnfit: the folder cannot be made.
    """
    if settings.folder:
        try:
            folder, local = DurableFolder(settings.folder), LocalStore(settings.folder)
        except OSError as error:
            raise StoreUnfit(describe(settings, _reason(error))) from None
        return ObjectStore(local, impatient=local, clock=partial(datetime.now, UTC), folder=folder)
    client = connect(settings, request_seconds=REQUEST_SECONDS, retry_seconds=RETRY_SECONDS)
    impatient = connect(settings, request_seconds=CHECK_SECONDS, retry_seconds=0)
    return ObjectStore(
        client, impatient=impatient, clock=BucketClock(client, settings), any_keys=AnyKeys(settings)
    )


def _under(prefix: str, found: Iterable[Found], *, key: Callable[[Found], str] = str) -> Iterator[Found]:
    """Yield the same objects or folders. Raises OSError if one of them does not lie under the prefix.

    A proxy that mixes up answers would otherwise give one voice the records of another one, even of another
    namespace.
    """
    for one in found:
        if not f"{key(one)}/".startswith(prefix):  # a folder's marker comes without its slash
            raise OSError(errno.EIO, "the store answered with the list of another prefix")
        yield one


def _given(etag: str | None) -> str:
    """Return the ETag of an answer. Raises OSError if it has none: no document could be changed without."""
    if not etag:
        raise OSError(errno.EPROTO, "the server's answer carries no ETag")
    return etag


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise OSError(errno.EIO, f"{len(data)} of {size} bytes came")
    return data


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    found = [
        match.group(match.lastindex or 0) for pattern in _REASONS if (match := pattern.search(str(error)))
    ]
    return " ".join(found) or type(error).__name__


def _probe(store: Store) -> None:
    """Use the store as the registry does, on objects made for this purpose, and compare every answer."""
    _delete_older_probes(store)
    prefix = f"{PROBES}{uuid4().hex}/"
    contents = {f"{prefix}{number:02}": f"{prefix}{number}".encode() for number in range(PROBED)}
    try:
        _probe_puts(store, prefix, contents)
        _probe_deletes(store, prefix, list(contents))
    finally:
        with suppress(Unavailable):
            store.delete(contents)


def _probe_puts(store: Store, prefix: str, contents: dict[str, bytes]) -> None:
    # The objects are read before they are put: a cache in between may remember that there was nothing.
    _expect(not _present(store, contents), "returned objects that were never put")
    for key, data in contents.items():
        store.put(key, data)
    listing = store.list(prefix)
    listed = {stored.key: stored.size for stored in listing.objects}
    _expect(listed == {key: len(data) for key, data in contents.items()}, "did not list what was just put")
    _expect(store.folders(PROBES).count(prefix.split("/")[1]) == 1, "did not name a folder just filled")
    _expect(_present(store, contents) == contents, "did not return what was just put")
    apart = max(abs(stored.last_modified - listing.taken_at) for stored in listing.objects)
    _expect(apart < MAX_CLOCK_DIFFERENCE, f"dates its objects and its answers {apart} apart")


def _probe_deletes(store: Store, prefix: str, keys: builtins.list[str]) -> None:
    store.delete(keys)
    store.delete(keys)  # what is missing already has to be fine
    _expect(not store.list(prefix).objects, "listed what was just deleted")
    _expect(not _present(store, keys), "returned what was just deleted")


def _delete_older_probes(store: Store) -> None:
    """Delete the probes that killed processes have left."""
    listing = store.list(PROBES)
    old = listing.taken_at - OLD_PROBE
    store.delete(stored.key for stored in listing.objects if stored.last_modified < old)


def _present(store: Store, keys: Iterable[str]) -> dict[str, bytes]:
    found = {}
    for key in keys:
        with suppress(FileNotFoundError):
            found[key] = store.get(key)
    return found


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise StoreUnfit(f"the object store {otherwise}: it can't be used")
