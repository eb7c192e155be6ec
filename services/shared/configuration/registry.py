"""Settings that the API and the workers of one registry have in common: requirements, quotas, and Redis."""

import re
from typing import Annotated, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from redis import ConnectionPool, RedisError

from services.shared.configuration.values import (
    Bytes,
    Count,
    Names,
    Secret,
    SecretFile,
    Text,
    WholeDurationSeconds,
    possible_host,
    refuse_both,
    secret_of,
)

MOST_VERSIONS = 200
"""The largest number of versions of a voice that a registry may be set to accept. One document holds all of
them, and every change of the voice rewrites it.
"""
_DATABASE = re.compile(r"/?\d*")


def _parse_redis_url(url: str) -> str:
    """Return the URL, or raise ValueError if redis-py cannot use it, or would ignore a part of it. The reason
    is left out, because it may quote a part of a password.
    """
    try:
        parts = urlsplit(url)
        possible_host(parts.hostname or "")
        ConnectionPool.from_url(url).make_connection()  # this connects to nothing yet
        possible = bool(parts.path) if parts.scheme == "unix" else bool(_DATABASE.fullmatch(parts.path))
    except (ValueError, TypeError, RedisError):
        possible = False
    if not possible:
        raise ValueError("accepted: redis://host:6379/0, rediss://host:6379/0 or unix:///path?db=0")
    return url


RedisUrl = Annotated[Text, AfterValidator(_parse_redis_url)]


def some_profiles(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, or raise ValueError if there are none."""
    if not names:
        raise ValueError("no profile is given; name at least one, such as qwen3-tts-0.6b")
    return names


class RegistrySettings(BaseSettings):
    """Requirements and quotas of this registry's voices, the same for the API and the workers. Environment:
    the names given below.
    """

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True, populate_by_name=True)

    profiles: Annotated[Names, AfterValidator(some_profiles)] = Field(
        ("qwen3-tts-0.6b",), validation_alias="SPEAKER_PROFILES"
    )
    """Comma-separated profiles that are extracted for every upload."""
    max_uploaded: Count = Field(1000, gt=0, validation_alias="SPEAKER_MAX_UPLOADED")
    """Largest number of voices in one namespace. A new voice counts from the start of its upload. While the
    view is rebuilt after a loss of Redis, only the voices that are already in it count.
    """
    max_stored_bytes: Bytes | None = Field(None, gt=0, validation_alias="SPEAKER_MAX_BYTES")
    """Largest total size of all clips, embeddings, texts and uploaded artifacts in one namespace, as they
    were sent. Artifacts that are made here do not count. Uploads and edits that arrive at the same moment may
    exceed the limit. What was deleted may take as much until its grace period ends. By default, only the
    available storage limits the size.
    """
    max_text_bytes: Bytes = Field(64 * 1024**2, gt=0, validation_alias="SPEAKER_MAX_TEXT_BYTES")
    """Largest total size of the names, consents, transcripts and descriptions of all versions in one
    namespace, in UTF-8; 64 MiB by default. Redis holds these texts. Uploads and edits that arrive at the
    same moment may exceed the limit. The records of what was deleted may take as much until their grace
    period ends.
    """
    max_versions: int = Field(MOST_VERSIONS, gt=0, le=MOST_VERSIONS, validation_alias="SPEAKER_MAX_VERSIONS")
    """Largest number of versions of one voice, at most 200, because one document holds all of them. Long
    texts can fill the document, which may take 1 MiB, earlier.
    """
    max_builds: int = Field(20, gt=0, le=9_999, validation_alias="SPEAKER_MAX_BUILDS")
    """Largest number of times that one artifact may be made again with `force` or uploaded. Canceled
    extractions count.
    """
    registration_policy: Literal["overwrite", "immutable"] = Field(
        "overwrite", validation_alias="VLLM_OMNI_SPEAKER_REGISTRATION_POLICY"
    )
    """Policy for registering a name again. With `immutable`, the name must be deleted first."""
    max_attempts: int = Field(3, gt=0, le=4, validation_alias="SPEAKER_MAX_ATTEMPTS")
    """Number of times that an extraction is tried when it fails in a way that may be temporary. If its worker
    dies or hangs, it is tried twice at least, because the first time another clip may have been to blame.
    """
    redis_url: RedisUrl = Field("redis://127.0.0.1:6379/0", validation_alias="SPEAKER_REDIS_URL", repr=False)
    """URL of Redis: `redis://`, `rediss://` or `unix://`. It must be that of one primary."""
    redis_password: Secret | None = Field(None, validation_alias="SPEAKER_REDIS_PASSWORD")
    """Password of Redis, used if the URL contains none. SPEAKER_REDIS_PASSWORD_FILE is safer."""
    redis_password_file: SecretFile | None = Field(None, validation_alias="SPEAKER_REDIS_PASSWORD_FILE")
    """File that holds the password of Redis, such as a mounted container secret."""
    job_seconds: WholeDurationSeconds = Field(120, gt=0, validation_alias="SPEAKER_JOB_SECONDS")
    """Time limit of one attempt, at most 86400. A worker that takes longer counts as hung."""

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        refuse_both("SPEAKER_REDIS_PASSWORD", self.redis_password, self.redis_password_file)
        return self

    @property
    def redis_address(self) -> str:
        """Return the URL with the password, which may come from another setting. It must not be shown."""
        password = secret_of(self.redis_password, self.redis_password_file)
        parts = urlsplit(self.redis_url)
        if password is None or parts.password is not None:
            return self.redis_url
        place = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{parts.username or ''}:{quote(password, safe='')}@{place}").geturl()
