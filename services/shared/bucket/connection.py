"""Connects to an S3-compatible bucket: client, credentials, the server's clock, and making the bucket ready.

This module knows how to connect, but not what a store guarantees, which `services.shared.bucket.store`
describes.
"""

import errno
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import boto3
import httpx
import obstore
import structlog
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
)
from botocore.exceptions import ConnectionError as ConnectionFailed
from botocore.parsers import ResponseParserError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import S3Store

from services.shared.configuration.store import StoreSettings
from services.shared.configuration.values import without_credentials

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef
    from obstore.store import S3Credential

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5.0
_SERVER_ERROR, _TOO_MANY = 500, 429
_SETTINGS = {
    "404": "SPEAKER_STORE_URL",
    "NoSuchBucket": "SPEAKER_STORE_URL",
    "BucketAlreadyExists": "SPEAKER_STORE_URL",
    "403": "SPEAKER_STORE_ACCESS_KEY_ID",
    "AccessDenied": "SPEAKER_STORE_ACCESS_KEY_ID",
    "InvalidAccessKeyId": "SPEAKER_STORE_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "SPEAKER_STORE_ACCESS_KEY_ID",
    "NoCredentialsError": "SPEAKER_STORE_ACCESS_KEY_ID",
    "PartialCredentialsError": "SPEAKER_STORE_ACCESS_KEY_ID",
    "CredentialRetrievalError": "SPEAKER_STORE_ACCESS_KEY_ID",
}
"""Maps the code of an S3 error, or the name of a boto3 exception, to the setting that is probably wrong."""
_NO_CREDENTIALS = (
    "no credentials are given by SPEAKER_STORE_ACCESS_KEY_ID and SPEAKER_STORE_SECRET_ACCESS_KEY (or …_FILE),"
    " and boto3 finds none (AWS_*, its files, web identity, the machine's role)"
)
_PASSING = (ConnectionFailed, HTTPClientError, IncompleteReadError, ResponseParserError)
_MISSING = {"404", "NoSuchBucket"}
_CREATED_MEANWHILE = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists", "OperationAborted"}
REQUEST_SECONDS = 25.0
"""Timeout of one request to the store, including its answer."""
RETRY_SECONDS = 25.0
"""Time for which failed requests are retried. A call therefore ends within this plus the timeout of one
request. Callers wait for it, so the two together stay below a minute.
"""
CLOCK_SECONDS = 600.0
"""The server's clock is read again after this time. In between, the time is computed from the last reading
with the local clock.
"""


class StoreUnfit(Exception):
    """The store lacks a guarantee that the registry relies on. This error is for operators, never for
    callers.
    """


class StoreUnreachable(StoreUnfit):
    """The store did not answer, or gave an invalid answer. The cause may be temporary."""


def connect(settings: StoreSettings, *, request_seconds: float, retry_seconds: float) -> S3Store:
    """Return a client of the bucket, without contacting it. Raises StoreUnfit if no credentials are found."""
    options: dict[str, Any] = {"endpoint": settings.endpoint} if settings.endpoint else {}
    if settings.region:
        options["region"] = settings.region
    return S3Store(
        settings.bucket,
        prefix=settings.prefix or None,
        credential_provider=_credentials(settings),
        # One DELETE for each object: not every server knows the bulk call, and obstore 0.12 panics where the
        # reply to it names a key that was not asked for.
        disable_bulk_delete=True,
        client_options={
            "allow_http": bool(settings.endpoint),  # the settings have already refused an unwanted one
            "connect_timeout": timedelta(seconds=min(CONNECT_SECONDS, request_seconds)),
            "timeout": timedelta(seconds=request_seconds),
            **({"root_certificate": settings.ca_file.read_bytes()} if settings.ca_file else {}),
        },
        retry_config={
            "max_retries": 10,
            "retry_timeout": timedelta(seconds=retry_seconds),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        },
        **options,
    )


def _credentials(settings: StoreSettings) -> Callable[[], "S3Credential"]:
    """Return a credential provider. There is always one, because without it obstore would mix the keys given
    here with an AWS_SESSION_TOKEN.
    """
    key_id, secret = settings.access_key_id, settings.secret
    if not key_id or not secret:
        try:
            return Boto3CredentialProvider()
        except ValueError:
            raise _without_credentials(settings) from None
    return lambda: {
        "access_key_id": key_id,
        "secret_access_key": secret,
        "token": None,
        "expires_at": None,
    }


def _without_credentials(settings: StoreSettings) -> StoreUnfit:
    return StoreUnfit(describe(settings, _NO_CREDENTIALS, code=NoCredentialsError.__name__))


class BucketClock:
    """Tells the server's time, from the `Date` of an answer. It is never ahead, and is about a second behind.

    The ages of objects are computed from the server's own times, so that a wrong local clock deletes nothing.
    """

    def __init__(self, client: S3Store, settings: StoreSettings) -> None:
        self._client = client
        self._tls = ssl.create_default_context(cafile=settings.ca_file)
        self._lock = threading.Lock()
        self._reading: tuple[datetime, float] | None = None
        """The date that was read last, and when that was by the local clock."""

    def __call__(self) -> datetime:
        """Return the server's time. Raises httpx.HTTPError if the server cannot be reached, OSError if its
        answer has no date.
        """
        with self._lock:
            if (now := self.known()) is None:
                now = self._read()
                self._reading = now, monotonic()
            return now

    def known(self) -> datetime | None:
        """Return the server's time. Returns None if the server has to be asked for it."""
        if self._reading is None:
            return None
        date, read_at = self._reading
        seconds = monotonic() - read_at
        return date + timedelta(seconds=seconds) if seconds <= CLOCK_SECONDS else None

    def _read(self) -> datetime:
        # The request is unsigned: a refusal carries the date too, and no signature gets into a request log.
        url = obstore.sign(self._client, "HEAD", ".clock", timedelta(minutes=1)).partition("?")[0]
        with httpx.Client(transport=httpx.HTTPTransport(verify=self._tls, retries=2)) as http:
            answer = http.head(url, timeout=CONNECT_SECONDS)
        if "Date" not in answer.headers:
            raise OSError(errno.EPROTO, "the server's answers carry no Date")
        return parsedate_to_datetime(answer.headers["Date"])


class AnyKeys:
    """Accesses the bucket through boto3, which accepts every key that S3 accepts. obstore lists ten times as
    fast, but it fails if one key has an empty part, `.`, `..` or a control character, so one foreign object
    would hide all of ours. It also leaves out the slash at the end of a key.

    Every method raises `BOTO3_ERRORS`.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._root = f"{settings.prefix}/" if settings.prefix else ""

    def objects(self, prefix: str) -> Iterator[tuple[str, int, datetime, str]]:
        """Yield key, size in bytes, time and ETag of every object under a prefix."""
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._root)
                yield key, found["Size"], found["LastModified"], found["ETag"]

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the prefix of each immediate folder under a prefix."""
        for page in self._pages(prefix, Delimiter="/"):
            for found in page.get("CommonPrefixes", ()):
                yield found["Prefix"].removeprefix(self._root)

    def delete(self, key: str) -> None:
        """Delete an object. A missing object is no error."""
        self._client.delete_object(Bucket=self._settings.bucket, Key=self._root + key)

    def _pages(self, prefix: str, **options: Any) -> Iterator["ListObjectsV2OutputTypeDef"]:
        paginator = self._client.get_paginator("list_objects_v2")
        return iter(paginator.paginate(Bucket=self._settings.bucket, Prefix=self._root + prefix, **options))

    @cached_property
    def _client(self) -> "S3Client":
        """The boto3 client. It is created on first use, because that is slow and most buckets never need
        it.
        """
        return _boto3_client(self._settings)


BOTO3_ERRORS = (BotoCoreError, ClientError)


def prepare_bucket(settings: StoreSettings) -> None:
    """Log the bucket's features that would keep deleted objects alive. With `create_bucket`, make a missing
    bucket. A local folder is only checked, because opening it makes it.

    Both errors name the setting, the address, and the cause.

    Raises:
        StoreUnfit: there is no such bucket, or access to it is refused.
        StoreUnreachable: the store gave no usable answer.
    """
    if settings.folder:
        _check_folder(settings, settings.folder)
        return
    try:
        _prepare(_boto3_client(settings), settings)
    except ClientError as error:
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        kind = StoreUnreachable if status >= _SERVER_ERROR or status == _TOO_MANY else StoreUnfit
        raise kind(
            describe(settings, f"{error.operation_name} was answered by {_code(error)}", code=_code(error))
        ) from None
    except _PASSING as error:
        raise StoreUnreachable(describe(settings, f"{type(error).__name__}: {error}")) from None
    except NoCredentialsError:
        raise _without_credentials(settings) from None
    except (BotoCoreError, ValueError) as error:
        name = type(error).__name__
        raise StoreUnfit(describe(settings, f"{name}: {error}", code=name)) from None


def _check_folder(settings: StoreSettings, folder: Path) -> None:
    """Check the folder. Raises `StoreUnfit` if it cannot be accessed, is no folder, or is missing and must
    not be created.
    """
    try:
        missing, is_folder = not folder.exists(), folder.is_dir()
    except OSError as error:
        raise StoreUnfit(describe(settings, str(error.strerror))) from None
    if not missing and not is_folder:
        raise StoreUnfit(describe(settings, "it is a file. Accepted: a folder"))
    if missing and not settings.create_bucket:
        raise _missing(settings)


def _missing(settings: StoreSettings) -> StoreUnfit:
    return StoreUnfit(
        describe(settings, "it does not exist. SPEAKER_STORE_CREATE_BUCKET=true creates it", code="404")
    )


def describe(settings: StoreSettings, cause: str, *, code: str = "") -> str:
    """Return one line with the setting to check, the store's address, and the error."""
    setting = _SETTINGS.get(code, "SPEAKER_STORE_ENDPOINT" if settings.endpoint else "SPEAKER_STORE_URL")
    if settings.folder:
        where = f"the folder '{settings.folder}'"
    else:
        where = f"bucket '{settings.bucket}' at {settings.endpoint or 'AWS'}"
    return " ".join(f"{setting}: {where} cannot be used: {without_credentials(cause)}".split())


def _prepare(client: "S3Client", settings: StoreSettings) -> None:
    _create_if_missing(client, settings)
    versioning = _said(lambda: client.get_bucket_versioning(Bucket=settings.bucket).get("Status", "Off"))
    object_lock = _said(
        lambda: client.get_object_lock_configuration(Bucket=settings.bucket)["ObjectLockConfiguration"].get(
            "ObjectLockEnabled", "Off"
        )
    )
    log.info("store.bucket", bucket=settings.bucket, versioning=versioning, object_lock=object_lock)
    if "Enabled" in (versioning, object_lock):
        log.warning("store.bucket_keeps_deleted_objects", bucket=settings.bucket)


def _boto3_client(settings: StoreSettings) -> "S3Client":
    return boto3.client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key_id,
        aws_secret_access_key=settings.secret,
        verify=str(settings.ca_file) if settings.ca_file else None,
        config=Config(
            signature_version="s3v4",  # the default may be the older one, which few servers know
            s3={"addressing_style": "path"},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=REQUEST_SECONDS,
            retries={"mode": "standard", "total_max_attempts": 4},
        ),
    )


def _create_if_missing(client: "S3Client", settings: StoreSettings) -> None:
    try:
        client.head_bucket(Bucket=settings.bucket)
    except ClientError as error:
        if _code(error) not in _MISSING:
            # The bucket may exist although the credentials do not allow this request. Every process has to
            # list the bucket. If that is refused too, as for a wrong key, the error names the cause.
            log.info("store.bucket_not_shown", reason=_code(error))
            prefix = f"{settings.prefix}/" if settings.prefix else ""
            client.list_objects_v2(Bucket=settings.bucket, Prefix=prefix, MaxKeys=1)
            return
        if not settings.create_bucket:
            raise _missing(settings) from None
        _create(client, settings)


def _create(client: "S3Client", settings: StoreSettings) -> None:
    region = client.meta.region_name
    try:
        if region == "us-east-1":  # the one region that must not be named
            client.create_bucket(Bucket=settings.bucket)
        else:
            client.create_bucket(
                Bucket=settings.bucket,
                CreateBucketConfiguration={"LocationConstraint": region},  # type: ignore[typeddict-item]  # any server's
            )
    except ClientError as error:
        if _code(error) not in _CREATED_MEANWHILE:
            raise
        _check_created(client, settings, _code(error))
    else:
        log.info("store.bucket_created", bucket=settings.bucket)


def _check_created(client: "S3Client", settings: StoreSettings, code: str) -> None:
    """Check a bucket that another replica has created, or is creating just now.

    Not every server says that the bucket is ours, so the check is whether we may use it.
    """
    if code == "BucketAlreadyOwnedByYou":
        return
    try:
        client.head_bucket(Bucket=settings.bucket)
    except ClientError as error:
        if _code(error) in _MISSING:
            raise StoreUnreachable(describe(settings, "it is being created")) from None
        raise


def _said(question: Callable[[], str]) -> str:
    try:
        return question()
    except ClientError as error:
        return f"unknown ({_code(error)})"


def _code(error: ClientError) -> str:
    return error.response["Error"]["Code"]
