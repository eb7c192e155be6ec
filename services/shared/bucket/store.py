"""The object store: immutable objects under keys, in an S3-compatible bucket or a local folder.

Same promises on both: what `put` returned for is durable, `get` gives whole objects, `list` is complete and
sees what was put before. Knows nothing of speakers: what keys mean is said in `facts`.

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
from typing import Protocol, TypeVar
from uuid import uuid4

import httpx
import obstore
import structlog
from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError, NotSupportedError
from obstore.store import LocalStore, S3Store

from services.shared.bucket.connection import BOTO3_ERRORS, AnyKeys, BucketClock, connect, describe
from services.shared.bucket.connection import StoreUnfit as StoreUnfit  # noqa: PLC0414 - callers see one module
from services.shared.bucket.connection import prepare_bucket as prepare_bucket  # noqa: PLC0414
from services.shared.bucket.durable_folder import DurableFolder, Skips
from services.shared.configuration.settings import StoreSettings
from services.shared.telemetry import tracing
from services.shared.telemetry.metrics import STORE_SECONDS
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

Found = TypeVar("Found")

_PART = r"(?!\.\.?(?:/|$))[A-Za-z0-9._-]{1,255}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_KEY_BYTES = 1000
"""S3 allows 1024, the bucket's prefix included."""

RETRY_AFTER_SECONDS = 5.0
CHECK_SECONDS = 3.0
"""A readiness check has to answer before whoever asks gives up."""

PROBES = ".probe/"
PROBED = 20
OLD_PROBE = timedelta(hours=1)
MAX_CLOCK_DIFFERENCE = timedelta(minutes=5)
"""Between a store's `Date` and the times of its objects. What is young is told by comparing the two."""

DATED_WITHIN = timedelta(seconds=2)
"""How far apart the clocks of a store may be: the one that dates its objects, which may be another machine's
or a file system's, and the one that dates its listings.
"""

_REASONS = (
    re.compile(r"status code: (\d{3})"),
    re.compile(r"<Code>(\w{1,60})</Code>"),
    re.compile(r"kind: (\w+)"),
    re.compile(r"incorrectly configured region"),
)
"""What is worth logging of obstore's messages; the rest of them names keys, and so persons."""


_SENTINEL = ".sentinel"
"""An object of the store's own. While it can be read, trouble with another object is that object's own."""
OBJECT_RETRY_AFTER_SECONDS = 60.0


class ObjectUnavailable(Unavailable):
    """The store answers, and does not do its part for this one object: it is archived, its disk block is bad,
    its owner is another. Others must not wait for that.
    """


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size: int
    last_modified: datetime
    """As the store says it."""


@dataclass(frozen=True, slots=True)
class Listing:
    objects: tuple[StoredObject, ...]
    """By key."""
    taken_at: datetime
    """The store's clock before the first page, never ahead: ages computed with it err on the young side."""


TakeListing = Callable[[], Listing]


def _nothing(_: str) -> bool:
    """The `Skips` that leaves nothing out."""
    return False


def _is_our_own(key: str) -> bool:
    """The `Skips` of what belongs to the store itself."""
    return key.startswith(".")


class Store(Protocol):
    """Keys are parts of `[A-Za-z0-9._-]` joined by `/`, a prefix ends with `/` or is empty; else ValueError.

    Every method raises `Unavailable` when the store does not do its part in time; `get` and `delete` raise
    `ObjectUnavailable` where it does so for other objects.
    """

    is_local: bool
    """Whether it is on this machine. Reading then costs processor time, and hardly ever waits."""

    def put(self, key: str, data: bytes) -> None:
        """Store an object, durably once this returns. A key is never put again with other content."""

    def create(self, key: str, data: bytes) -> bool | None:
        """Store an object unless there is one under this key already, whoever else does so at the same time.

        Returns whether it was stored; None if this store has no conditional writes, and then nothing was.
        After a lost reply the answer may be False though it was this call that stored it.
        """
        ...

    def get(self, key: str) -> bytes:
        """The whole object, or FileNotFoundError."""
        ...

    def list(self, prefix: str) -> Listing:
        """Everything under a prefix, including what was put a moment ago."""
        ...

    def listings(self, prefix: str, skips: Skips = _nothing) -> Iterator[tuple[str, TakeListing]]:
        """Everything under a prefix, folder by folder: the name of each immediate folder, in no order,
        and how to list what is in it. Of a bucket that was taken already, as one request serves many folders;
        what one answer leaves out is there all the same, because everything is asked for twice. In a local
        folder it costs as much as `list`, so several threads may do it.

        Args:
            skips: what is left out. Its keys begin with `prefix`. A folder that holds nothing else may be
                missing.
        """
        ...

    def folders(self, prefix: str) -> builtins.list[str]:
        """Names of the immediate folders under a prefix that hold anything."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is not there is fine. Takes any key that was listed. Where one cannot be
        removed, the others are all the same.
        """

    def check(self) -> None:
        """Return if the store answers, within seconds."""

    def probe(self) -> None:
        """Raise `StoreUnfit` unless the store is consistent: what was put, got and deleted shows at once."""

    def sweep_temporary(self, older_than: timedelta) -> int:
        """Remove what interrupted writes left, and say how much. A bucket keeps no such."""
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
        """The same, but gives up at once."""
        self._clock = clock
        """The store's."""
        self.is_local = folder is not None
        self._folder = folder
        """Does all writing to a local folder: obstore never syncs."""
        self._any_keys = any_keys
        """Lists a bucket in which obstore met a key that it refuses."""

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
        """Whether a conditional write did write. A store that knows no conditions always does."""
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
        """The same, asked for 1,000 at a time: each portion may fail."""
        while True:
            with self._translating("list"):
                self._check_folder()
                portion = builtins.list(islice(found, 1000))
            if not portion:
                return
            yield from portion

    def _found(self, prefix: str, skips: Skips) -> Iterator[StoredObject]:
        if self._folder:
            # Not by obstore: one file whose name it does not take hides all others.
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
        """An empty mount point must not pass for a store that has lost everything."""
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
            except (BaseError, OSError, httpx.HTTPError, *BOTO3_ERRORS) as error:
                if operation == "get" and self._says_missing(error):
                    result = "missing"
                    raise FileNotFoundError("no such object") from None
                log.error("store.failed", operation=operation, reason=_reason(error))
                unavailable = self._unavailable(operation)
                unavailable.add_note(f"{operation}: {_reason(error)}")  # for whoever runs us
                raise unavailable from None
            finally:
                STORE_SECONDS.labels(operation, result).observe(perf_counter() - began)

    def _unavailable(self, operation: str) -> Unavailable:
        """What a failure is to callers: the store's, or that of one object."""
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
        """Whether the object is missing, not bucket or folder: obstore raises the same for either."""
        if not isinstance(error, FileNotFoundError):
            return False
        if self._folder:
            return self._folder.is_there()
        return "<Code>NoSuchKey</Code>" in str(error)


def _may_be_marker(stored: StoredObject, prefix: str) -> bool:
    """Consoles put an empty object `a/` where somebody makes a folder. We put no empty ones."""
    return stored.size == 0 or not stored.key.startswith(prefix)


def _same(listing: Listing) -> Listing:
    return listing


def _listing(found: Iterable[StoredObject], taken_at: datetime) -> Listing:
    return Listing(tuple(sorted(found, key=lambda stored: stored.key)), taken_at)


def merged(*walks: Iterator[tuple[str, Listing]]) -> Iterator[tuple[str, Listing]]:
    """Each folder with all that any walk found in it. All come by the same folders in much the same order."""
    waiting: dict[str, Listing] = {}
    for step in zip_longest(*walks):
        for folder, listing in filter(None, step):
            if folder in waiting:
                yield folder, together([waiting.pop(folder), listing])
            else:
                waiting[folder] = listing
    yield from waiting.items()


def together(listings: Sequence[Listing]) -> Listing:
    """All that any of some listings of one prefix tells of, dated as the first."""
    objects = {stored.key: stored for listing in listings for stored in listing.objects}
    return Listing(tuple(objects[key] for key in sorted(objects)), listings[0].taken_at)


def _folder_of(key: str, prefix: str) -> str:
    """The immediate folder under a prefix that a key is in; empty where it is in none."""
    return key[len(prefix) :].rpartition("/")[0].partition("/")[0]


def check_key(key: str) -> str:
    """The key, or ValueError."""
    if len(key) >= MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise ValueError(f"not a key: {key[:80]!a}")
    return key


def _check_listed(key: str) -> str:
    """The key of a file that was listed, whoever put it there; ValueError if it leads elsewhere."""
    if "\0" in key or _has_odd_part(key):
        raise ValueError(f"not a key: {key[:80]!a}")
    return key


def _is_path(key: str) -> bool:
    """Whether obstore takes a key."""
    return not _CONTROL.search(key) and not _has_odd_part(key)


def _has_odd_part(key: str) -> bool:
    return any(part in {"", ".", ".."} for part in key.split("/"))


def check_prefix(prefix: str) -> None:
    if prefix and not (prefix.endswith("/") and check_key(prefix[:-1])):
        raise ValueError(f"a prefix ends with '/': {prefix[:80]!a}")


def open_store(settings: StoreSettings) -> ObjectStore:
    """The store that the settings name. A local folder is made; a bucket is not yet talked to.

    Raises:
        StoreUnfit: the folder cannot be made.
    """
    if settings.folder:
        try:
            folder, local = DurableFolder(settings.folder), LocalStore(settings.folder)
        except OSError as error:
            raise StoreUnfit(describe(settings, _reason(error))) from None
        return ObjectStore(local, impatient=local, clock=partial(datetime.now, UTC), folder=folder)
    client = connect(settings, request_seconds=settings.request_seconds, retry_seconds=settings.retry_seconds)
    impatient = connect(settings, request_seconds=CHECK_SECONDS, retry_seconds=0)
    return ObjectStore(
        client, impatient=impatient, clock=BucketClock(client, settings), any_keys=AnyKeys(settings)
    )


def _under(prefix: str, found: Iterable[Found], *, key: Callable[[Found], str] = str) -> Iterator[Found]:
    """The same objects or folders. Raises OSError where one of them does not lie under the prefix.

    A proxy that mixes up answers would otherwise give one voice the records of another one, even of another
    namespace.
    """
    for one in found:
        if not f"{key(one)}/".startswith(prefix):  # a folder's marker comes without its slash
            raise OSError(errno.EIO, "the store answered with the list of another prefix")
        yield one


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
    """Use the store as we are going to, on objects of our own, and compare every answer."""
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
    # Asking first: a cache in between may remember that there was nothing.
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
    """What a killed process has left."""
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
