"""A store in an S3-compatible bucket, on obstore."""

import builtins
import errno
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import starmap
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    PreconditionError,
)
from obstore.store import S3Store

from services.shared.bucket.connection import AnyKeys, BucketClock
from services.shared.bucket.store import (
    MAX_READ_BYTES,
    SENTINEL,
    SENTINEL_DATA,
    Listing,
    Moved,
    Object,
    StoredObject,
    TooLarge,
    check_key,
    check_prefix,
    has_unsafe_part,
    is_our_own,
    listing_of,
    nothing,
)
from services.shared.bucket.store_calls import StoreCalls, delete_each

if TYPE_CHECKING:
    from obstore import PutMode

Found = TypeVar("Found")

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PAGE = 1000
"""The number of objects that one answer of the server lists."""


class BucketStore:
    """A `Store` in a bucket."""

    is_local = False

    def __init__(
        self,
        client: S3Store,
        *,
        for_swaps: S3Store,
        without_retries: S3Store,
        clock: BucketClock,
        any_keys: AnyKeys,
    ) -> None:
        """Use a bucket.

        Args:
            for_swaps: a client of the same bucket for conditional writes. It does not retry failed requests:
                if the first one was carried out, its repetition would be refused like a conflict.
            without_retries: a client of the same bucket that does not retry failed requests.
            clock: the clock of the server.
            any_keys: lists the bucket instead if it contains a key that obstore refuses or shortens.
        """
        self._client = client
        self._for_swaps = for_swaps
        self._without_retries = without_retries
        self._clock = clock
        self._any_keys = any_keys
        self._translating = StoreCalls(_says_missing, self._serves_others).translating

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._translating("put"):
            # One request: the parts of an interrupted multipart upload would stay, and no listing shows them.
            obstore.put(self._client, key, data, use_multipart=False)

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        check_key(key)
        mode: PutMode = "create" if etag is None else {"e_tag": etag}
        with self._translating("swap"):
            try:
                put = obstore.put(self._for_swaps, key, data, mode=mode, use_multipart=False)
                return _given(put["e_tag"])
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                raise Moved from None

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._translating("get"):
            result = obstore.get(self._client, key)
            return _whole(bytes(result.bytes()), result.meta["size"])

    def read(self, key: str) -> Object:
        check_key(key)
        with self._translating("get"):
            result = obstore.get(self._client, key)
            size, etag = result.meta["size"], _given(result.meta["e_tag"])
            if size > MAX_READ_BYTES:
                raise TooLarge(size, etag)
            return Object(_whole(bytes(result.bytes()), size), etag)

    def address(self, key: str, seconds: int) -> str | None:
        check_key(key)
        with self._translating("sign"):
            try:
                obstore.head(self._without_retries, key)
            except (BaseError, OSError):
                # The answer to HEAD has no body, so it does not tell a missing object from a missing bucket.
                # `get` does.
                return None
            return obstore.sign(self._client, "GET", key, timedelta(seconds=seconds))

    def folders(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        with self._translating("list"):
            found = _under(prefix, self._found_folders(prefix))
            names = sorted(path.removesuffix("/").rpartition("/")[2] for path in found)
        return names if prefix else [name for name in names if not is_our_own(name)]

    def _found_folders(self, prefix: str) -> Iterable[str]:
        try:
            return obstore.list_with_delimiter(self._client, prefix or None)["common_prefixes"]
        except InvalidPathError:
            return self._any_keys.folders(prefix)

    def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        skips = nothing if prefix else is_our_own
        with self._translating("list"):
            taken_at = self._clock()
            found = _under(prefix, self._found(prefix), key=lambda stored: stored.key)
            return listing_of((stored for stored in found if not skips(stored.key)), taken_at)

    def _found(self, prefix: str) -> Iterable[StoredObject]:
        """Return the objects under a prefix. If obstore refuses or shortens a key, the bucket is listed again
        with boto3.
        """
        try:
            pages = obstore.list(self._client, prefix or None, chunk_size=_PAGE)
            found = [
                StoredObject(meta["path"], meta["size"], meta["last_modified"], meta["e_tag"])
                for page in pages
                for meta in page
            ]
        except InvalidPathError:
            return self._found_under_any_keys(prefix)
        # obstore names the marker of a folder, `a/`, as `a`, and could not delete it by that name.
        if any(_may_be_marker(stored, prefix) for stored in found):
            return self._found_under_any_keys(prefix)
        return found

    def _found_under_any_keys(self, prefix: str) -> Iterable[StoredObject]:
        return starmap(StoredObject, self._any_keys.objects(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        delete_each(self._delete, builtins.list(keys))

    def _delete(self, keys: builtins.list[str]) -> None:
        with self._translating("delete"):
            obstore.delete(self._client, [key for key in keys if _is_path(key)])
            for key in keys:
                if not _is_path(key):
                    self._any_keys.delete(key)

    def check(self) -> None:
        with self._translating("check"):
            obstore.list(self._without_retries, ".check/").collect()

    def check_writing(self) -> None:
        with self._translating("check"):
            obstore.put(self._without_retries, SENTINEL, SENTINEL_DATA, use_multipart=False)
            obstore.get(self._without_retries, SENTINEL).bytes()

    def now(self) -> datetime:
        if (known := self._clock.known()) is not None:
            return known  # not measured: this is no operation of the server
        with self._translating("check"):
            return self._clock()

    def sweep_temporary(self, older_than: timedelta) -> int:  # noqa: ARG002 - a bucket keeps no such files
        return 0

    def _serves_others(self) -> bool:
        try:
            obstore.get(self._without_retries, SENTINEL).bytes()
        except (BaseError, OSError):
            return False
        return True


def _says_missing(error: Exception) -> bool:
    """Return whether the object is missing, and not the bucket. obstore raises the same error for both."""
    return isinstance(error, FileNotFoundError) and "<Code>NoSuchKey</Code>" in str(error)


def _may_be_marker(stored: StoredObject, prefix: str) -> bool:
    """Return whether the object may be a folder's marker. Consoles store an empty object `a/` when a folder
    is created by hand. The registry stores no empty objects.
    """
    return stored.size == 0 or f"{stored.key}/" == prefix


def _is_path(key: str) -> bool:
    """Return whether obstore accepts a key."""
    return not _CONTROL.search(key) and not has_unsafe_part(key)


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
    """Return the ETag of an answer. Raises OSError if it has none, because documents are changed by their
    ETag.
    """
    if not etag:
        raise OSError(errno.EPROTO, "the server's answer carries no ETag")
    return etag


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise OSError(errno.EIO, f"{len(data)} of {size} bytes came")
    return data
