"""Measures and traces each call of a store, and converts its failures to errors of the registry.

Messages and logs contain no keys, because keys contain names. This module knows how stores fail, but not what
they do.
"""

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

import httpx
import structlog
from obstore.exceptions import BaseError

from services.shared.bucket.connection import BOTO3_ERRORS
from services.shared.bucket.durable_folder import READ_ONLY
from services.shared.bucket.store import Moved, ObjectUnavailable, StoreFull, TooLarge, WritesRefused
from services.shared.telemetry import tracing
from services.shared.telemetry.metrics import STORE_SECONDS
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_REASONS = {"507", "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
"""What S3 servers say when they have no room for an object: the status 507, and codes of Ceph and MinIO."""
_RETRY_AFTER_SECONDS = 5.0
_OBJECT_RETRY_AFTER_SECONDS = 60.0

_REASONS = (
    re.compile(r"status code: (\d{3})"),
    re.compile(r"<Code>(\w{1,60})</Code>"),
    re.compile(r"kind: (\w+)"),
    re.compile(r"incorrectly configured region"),
)
"""The parts of obstore's messages that are logged. The rest of a message contains keys, and so names of
people.
"""


class StoreCalls:
    """Measures the calls of one store, and converts its failures."""

    def __init__(self, says_missing: Callable[[Exception], bool], serves_others: Callable[[], bool]) -> None:
        """Use the rules that differ between stores.

        Args:
            says_missing: returns whether an error says that an object is missing, and not the whole store.
            serves_others: returns whether the store still serves other objects.
        """
        self._says_missing = says_missing
        self._serves_others = serves_others

    @contextmanager
    def translating(self, operation: str) -> Iterator[None]:
        """Measure one call. Converts the store's errors to ours, and raises FileNotFoundError for a missing
        object.
        """
        began, result = perf_counter(), "failed"
        moved: Moved | None = None
        with tracing.span(f"store.{operation}", kind="client"):
            try:
                yield
                result = "ok"
            except Moved as lost_race:
                result, moved = "moved", lost_race
            except TooLarge:
                result = "ok"
                raise
            except (BaseError, OSError, httpx.HTTPError, *BOTO3_ERRORS) as error:
                if operation == "get" and self._says_missing(error):
                    result = "missing"
                    raise FileNotFoundError("no such object") from None
                log.error("store.failed", operation=operation, reason=reason(error))
                unavailable = self._unavailable(operation, error)
                unavailable.add_note(f"{operation}: {reason(error)}")  # for operators
                raise unavailable from None
            finally:
                STORE_SECONDS.labels(operation, result).observe(perf_counter() - began)
        if moved is not None:
            raise moved  # after the span, which would count it as failed

    def _unavailable(self, operation: str, error: Exception) -> Unavailable:
        """Return the error that callers get for a failure, which concerns either the store or one object."""
        if _says_full(error):
            return StoreFull(
                "The disk of the object store is full. Stored objects can be read. Make room to store more.",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        if operation in {"put", "swap"} and isinstance(error, OSError) and error.errno in READ_ONLY:
            return WritesRefused(
                "The object store can only be read, and takes no writes.",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        if operation in {"get", "delete"} and self._serves_others():
            return ObjectUnavailable(
                "The object store does not give access to one object.",
                retry_after_seconds=_OBJECT_RETRY_AFTER_SECONDS,
            )
        return Unavailable("The object store is not available.", retry_after_seconds=_RETRY_AFTER_SECONDS)


def _says_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    return not _FULL_REASONS.isdisjoint(reason(error).split())


def reason(error: Exception) -> str:
    """Return the part of an error that may be logged."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    found = [
        match.group(match.lastindex or 0) for pattern in _REASONS if (match := pattern.search(str(error)))
    ]
    return " ".join(found) or type(error).__name__


def delete_each(delete: Callable[[list[str]], None], keys: list[str]) -> None:
    """Delete objects in one call, or one by one if that fails, so that one failure does not keep the
    others.
    """
    try:
        delete(keys)
    except ObjectUnavailable:
        _delete_one_by_one(delete, keys)


def _delete_one_by_one(delete: Callable[[list[str]], None], keys: Iterable[str]) -> None:
    failure: ObjectUnavailable | None = None
    for key in keys:
        try:
            delete([key])
        except ObjectUnavailable as error:
            failure = error
    if failure is not None:
        raise failure
