"""Settings for the place where the objects of a registry are stored."""

import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.shared.configuration.values import (
    WITH_HOST,
    DurationSeconds,
    ReadableFile,
    Secret,
    SecretFile,
    is_private,
    secret_of,
)

_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_STORE_URL = re.compile(rf"file://(localhost)?/[^?#]+|s3://{_BUCKET}(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def _parse_store_url(url: str) -> str:
    url = url.rstrip("/")
    if not _STORE_URL.fullmatch(url) or len(url) > 300:
        raise ValueError(
            "expected file:///folder or s3://bucket/prefix: the bucket's name has 3 to 63 characters of a-z, "
            "0-9, '.' and '-', the prefix has letters, digits, '.', '_' and '-'"
        )
    return url


def _parse_endpoint(url: str) -> str:
    """Return the URL, or raise ValueError. User and query are refused because S3 signs each request instead,
    and because the URL is logged and recorded in the bucket.
    """
    if not re.fullmatch(r"https?://[^/?#@\s]+", url):
        raise ValueError(
            "expected only https://host or https://host:port; SPEAKER_STORE_ACCESS_KEY_ID and "
            "SPEAKER_STORE_SECRET_ACCESS_KEY (or …_FILE) take the credentials"
        )
    return url


class StoreSettings(BaseSettings):
    """The bucket or folder where objects are stored. Environment: SPEAKER_STORE_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_STORE_", env_ignore_empty=True, frozen=True)

    url: Annotated[str, AfterValidator(_parse_store_url)]
    """Location of the objects: `file:///folder` or `s3://bucket/prefix`."""
    endpoint: Annotated[str, AfterValidator(_parse_endpoint), WITH_HOST] | None = None
    """URL of an S3-compatible server, for example `https://s3.example.org`. AWS is used by default."""
    region: str | None = None
    """Region of the bucket. Defaults to AWS_REGION, or to us-east-1 if that is not set."""
    access_key_id: str | None = None
    """Id of the access key. If it is not set, boto3 looks for credentials in AWS_*, its files, web
    identity and the machine's role.
    """
    secret_access_key: Secret | None = None
    """Secret of the access key; must be set together with the key id. A file is safer."""
    secret_access_key_file: SecretFile | None = None
    """File that holds the secret key, such as a mounted container secret."""
    ca_file: ReadableFile | None = None
    """File with the PEM certificates of the private authority that signed the endpoint's certificate."""
    allow_http: bool = False
    """Allow plain http to an endpoint on another machine. Audio and signatures are then sent unencrypted."""
    create_bucket: bool = False
    """Create the bucket or folder at startup if it does not exist. By default a missing one is an
    error, because its name may have been mistyped.
    """
    known_as: str | None = Field(default=None, max_length=300)
    """Location that the bucket or folder has recorded for itself, if it has another name or address here. By
    default a bucket that has recorded another location is taken for a copy and refused.
    """
    start_seconds: DurationSeconds = Field(default=30, ge=0)
    """Time for which a starting process keeps trying to reach the store, with growing pauses, before it gives
    up.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.access_key_id) != bool(self.secret_access_key or self.secret_access_key_file):
            raise ValueError(
                "SPEAKER_STORE_ACCESS_KEY_ID and SPEAKER_STORE_SECRET_ACCESS_KEY (or …_FILE) go together: "
                "one of the two is missing"
            )
        if self.endpoint and not self.allow_http and not is_private(self.endpoint):
            raise ValueError(
                f"SPEAKER_STORE_ENDPOINT: {self.endpoint} is plain http on another machine; use https, "
                "or set SPEAKER_STORE_ALLOW_HTTP=true"
            )
        return self

    @property
    def folder(self) -> Path | None:
        """Return the local folder, or None for a bucket."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def bucket(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        """Return the beginning of every key in the bucket. It is empty, or has no `/` at either end."""
        return urlsplit(self.url).path.strip("/")

    @property
    def secret(self) -> str | None:
        """Return the secret key, whether it was given directly or in a file."""
        return secret_of(self.secret_access_key, self.secret_access_key_file)
