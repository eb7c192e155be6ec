"""Settings: small, frozen, one class per concern, read from environment variables with a prefix of their own.

`__main__` builds them and passes them to the code that needs them. This module knows no service and opens no
connection.
"""

import ipaddress
import re
import stat
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import quote, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_STORE_URL = re.compile(rf"file://(localhost)?/[^?#]+|s3://{_BUCKET}(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")

EXTRACTOR_CACHE = Path("~/.cache/speaker-registry")

LONGEST_CLIP_SECONDS = 30.0
"""The longest clip that a registry accepts by default."""
LONGEST_JOB_SECONDS = 24 * 3600
"""The longest time limit that a job may have. Timers overflow at much longer ones."""
MOST_VERSIONS = 200
"""The largest number of versions of a voice that a registry may be set to accept. One document holds all of
them, and every change of the voice writes it anew.
"""


def without_credentials(text: str) -> str:
    """Return the text with the credentials of a URL in it replaced by an ellipsis."""
    return re.sub("//.*@", "//…@", text)


def is_loopback(host: str) -> bool:
    """Return whether the host names this machine and can be reached only from it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _readable(path: Path) -> Path:
    """Return the path of a file that can be read, or raise ValueError.

    The check is made here because an error here names the variable; the code that opens the file cannot.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise ValueError("this is not a regular file")
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"this file cannot be read: {error.strerror}") from None
    return path


ReadableFile = Annotated[Path, AfterValidator(_readable)]


def _secret_of(given: SecretStr | None, file: Path | None) -> str | None:
    """Return the secret that was given, or the one in the file, or None if there is neither."""
    if file:
        return file.read_text().strip()
    return given.get_secret_value() if given else None


def _parse_store_url(url: str) -> str:
    url = url.rstrip("/")
    if not _STORE_URL.fullmatch(url) or len(url) > 300:
        raise ValueError(
            "expected file:///folder or s3://bucket/prefix, the prefix of letters, digits, '.', '_', '-'"
        )
    return url


class StoreSettings(BaseSettings):
    """The bucket or folder where objects are stored. Environment: SPEAKER_STORE_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_STORE_", env_ignore_empty=True, frozen=True)

    url: Annotated[str, AfterValidator(_parse_store_url)]
    """Location of the objects: `file:///folder` or `s3://bucket/prefix`."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/]+$")
    """URL of an S3-compatible server, for example `https://s3.example.org`. AWS is used by default."""
    region: str | None = None
    """Region of the bucket. Defaults to AWS_REGION, or to us-east-1 if that is not set."""
    access_key_id: str | None = None
    """Id of the access key. If it is not set, boto3 looks for credentials in AWS_*, its files, web
    identity and the machine's role.
    """
    secret_access_key: SecretStr | None = None
    """Secret of the access key; must be set together with the key id. A file is safer."""
    secret_access_key_file: ReadableFile | None = None
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
    start_seconds: float = Field(default=30, ge=0)
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
        if self.access_key_id and not self.secret:
            raise ValueError(f"SPEAKER_STORE_SECRET_ACCESS_KEY_FILE: {self.secret_access_key_file} is empty")
        if self.endpoint and not self.allow_http and not _private(self.endpoint):
            raise ValueError(
                f"SPEAKER_STORE_ENDPOINT: {without_credentials(self.endpoint)} is plain http on another "
                "machine; use https, or set SPEAKER_STORE_ALLOW_HTTP=true"
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
        return _secret_of(self.secret_access_key, self.secret_access_key_file)


class UploadLimits(BaseSettings):
    """Limits of the reference audio that is accepted and of what decoding it may cost. Environment:
    SPEAKER_UPLOAD_*.
    """

    model_config = SettingsConfigDict(env_prefix="SPEAKER_UPLOAD_", env_ignore_empty=True, frozen=True)

    max_bytes: int = Field(10 * 1024**2, gt=0)
    """Largest size of an uploaded clip, 10 MiB by default. The other fields of the form may take 256
    KiB more.
    """
    min_seconds: float = Field(1.0, gt=0)
    """Shortest clip that is accepted, inclusive. Speaker encoders have little to work with below it."""
    max_seconds: float = Field(LONGEST_CLIP_SECONDS, gt=0)
    """Longest clip that is accepted, inclusive. It bounds the memory that one clip takes in every later
    step.
    """
    decode_seconds: float = Field(10.0, gt=0)
    """Limit of decoding one clip, in seconds of wall time and of processor time. Clips beyond it are
    refused.
    """
    decode_memory_bytes: int = Field(256 * 1024**2, ge=64 * 1024**2)
    """Memory that decoding one clip may take in addition to the decoding libraries' own."""
    decoders: int = Field(4, gt=0)
    """Number of clips that one API process decodes at the same time, each in a process of its own."""
    require_seccomp: bool = False
    """Refuse to decode where the kernel or the container does not allow the seccomp filter. Without the
    filter, a clip that takes over its decoder can still open neither files nor sockets, but can make
    other system calls.
    """
    held_bytes: int = Field(192 * 1024**2, gt=0)
    """Total size of the uploads that one API process has begun to read and not answered, in memory and
    in /tmp. Uploads beyond it are refused with `Retry-After`.
    """

    @model_validator(mode="after")
    def _some_length_is_accepted(self) -> Self:
        if self.min_seconds > self.max_seconds:
            raise ValueError(
                f"SPEAKER_UPLOAD_MIN_SECONDS is {self.min_seconds:g}, which is more than "
                f"SPEAKER_UPLOAD_MAX_SECONDS, {self.max_seconds:g}"
            )
        if self.held_bytes < 2 * self.max_bytes:
            raise ValueError(
                f"SPEAKER_UPLOAD_HELD_BYTES is {self.held_bytes}, which is less than twice "
                f"SPEAKER_UPLOAD_MAX_BYTES, {self.max_bytes}: there would be no room for an upload"
            )
        return self


def _private(endpoint: str) -> bool:
    """Return whether nothing but the endpoint can read what is sent to it: over https, or on this machine."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def _names(text: object) -> object:
    return [name.strip() for name in text.split(",") if name.strip()] if isinstance(text, str) else text


def _networks(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of proxies unchanged, or raise ValueError if one is no address and no network.

    A name that cannot be parsed must not pass: it would be trusted without a decision, or never be trusted.
    """
    for name in names:
        try:
            ipaddress.ip_network(name)
        except ValueError as error:
            raise ValueError(
                f"{error}; accepted: addresses and networks, such as 10.1.2.3 and 10.1.0.0/16"
            ) from None
    return names


class RegistrySettings(BaseSettings):
    """Requirements and quotas of this registry's voices, the same for the API and the workers. Environment:
    the names given below.
    """

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True, populate_by_name=True)

    profiles: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = Field(
        ("qwen3-tts-0.6b",), validation_alias="SPEAKER_PROFILES"
    )
    """Comma-separated profiles that are extracted for every upload."""
    max_uploaded: int = Field(1000, gt=0, validation_alias="SPEAKER_MAX_UPLOADED")
    """Largest number of voices in one namespace. A new voice counts from the start of its upload. While the
    view is rebuilt after a loss of Redis, only the voices that are already in it count.
    """
    max_stored_bytes: int | None = Field(None, gt=0, validation_alias="SPEAKER_MAX_BYTES")
    """Largest total size of all clips, embeddings, texts and uploaded artifacts in one namespace, as they
    were sent. Artifacts that are made here do not count. Uploads that arrive at the same moment may exceed
    the limit. By default, only the available storage limits the size.
    """
    max_text_bytes: int = Field(64 * 1024**2, gt=0, validation_alias="SPEAKER_MAX_TEXT_BYTES")
    """Largest total size of the names, consents, transcripts and descriptions of all versions in one
    namespace, in UTF-8; 64 MiB by default. Redis holds these texts. Uploads that arrive at the same moment
    may exceed the limit.
    """
    max_versions: int = Field(MOST_VERSIONS, gt=0, le=MOST_VERSIONS, validation_alias="SPEAKER_MAX_VERSIONS")
    """Largest number of versions of one voice, at most 200, because one document holds all of them. Long
    texts can fill the document, which may take 1 MiB, earlier.
    """
    max_builds: int = Field(20, gt=0, lt=10_000, validation_alias="SPEAKER_MAX_BUILDS")
    """Largest number of times that one artifact may be made again with `force` or uploaded."""
    registration_policy: Literal["overwrite", "immutable"] = Field(
        "overwrite", validation_alias="VLLM_OMNI_SPEAKER_REGISTRATION_POLICY"
    )
    """Policy for registering a name again. With `immutable`, the name must be deleted first."""
    max_attempts: int = Field(3, gt=0, le=4, validation_alias="SPEAKER_MAX_ATTEMPTS")
    """Number of times that an extraction is tried when it fails in a way that may be temporary."""
    redis_url: str = Field("redis://127.0.0.1:6379/0", validation_alias="SPEAKER_REDIS_URL", repr=False)
    """URL of Redis: `redis://`, `rediss://` or `unix://`. It must be that of one primary."""
    redis_password: SecretStr | None = Field(None, validation_alias="SPEAKER_REDIS_PASSWORD")
    """Password of Redis, used if the URL contains none. SPEAKER_REDIS_PASSWORD_FILE is safer."""
    redis_password_file: ReadableFile | None = Field(None, validation_alias="SPEAKER_REDIS_PASSWORD_FILE")
    """File that holds the password of Redis, such as a mounted container secret."""
    job_seconds: int = Field(120, gt=0, le=LONGEST_JOB_SECONDS, validation_alias="SPEAKER_JOB_SECONDS")
    """Time limit of one attempt, at most 86400. A worker that takes longer counts as hung."""

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.redis_password and self.redis_password_file:
            raise ValueError(
                "SPEAKER_REDIS_PASSWORD and SPEAKER_REDIS_PASSWORD_FILE are set: give one of them"
            )
        return self

    @property
    def redis_address(self) -> str:
        """Return the URL with the password, which may come from another setting. It must not be shown."""
        password = _secret_of(self.redis_password, self.redis_password_file)
        parts = urlsplit(self.redis_url)
        if password is None or parts.password is not None:
            return self.redis_url
        place = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{parts.username or ''}:{quote(password, safe='')}@{place}").geturl()


class HousekeepingSettings(BaseSettings):
    """Repairs and sweeps, which each API process performs. Environment: SPEAKER_HOUSEKEEPING_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_HOUSEKEEPING_", env_ignore_empty=True, frozen=True)

    turn_seconds: float = Field(1.0, gt=0)
    """Pause between two checks for voices that are due."""
    sweep_seconds: float = Field(86_400, gt=0)
    """Time between two sweeps of all voices."""
    grace_seconds: float = Field(86_400, ge=3600)
    """Time for which bytes that no document names are kept, because their upload or their worker may still be
    running.
    """
    deleted_grace_seconds: float = Field(86_400, ge=0)
    """Time for which the data of a deleted voice is kept."""
    rebuild_threads: int = Field(16, gt=0)
    """Number of documents that are read at the same time while the view is rebuilt from a bucket. A local
    folder is read by one thread.
    """
    sweep_threads: int = Field(4, gt=0)
    """Number of voices that a sweep reads at the same time. A sweep need not be fast."""


class WorkerSettings(BaseSettings):
    """Settings for taking jobs and for reporting that a worker is alive. Environment: SPEAKER_WORKER_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_WORKER_", env_ignore_empty=True, frozen=True)

    lease_seconds: int = Field(30, ge=2)
    """A job is given to another worker this long after the last heartbeat of the worker that holds it. A
    worker sends six heartbeats in this time. A job that was taken from the queue and not started is put back
    after half of it.
    """
    poll_seconds: float = Field(1, ge=0.05, le=10)
    """Time for which an idle worker waits for a job before it looks again. Stopping an idle worker takes
    about as long.
    """
    batch_size: int = Field(32, ge=1, le=1000)
    """Largest number of jobs that a worker takes from one queue at a time."""
    beat_file: Path | None = None
    """File to which each heartbeat is written, for `python -m services.extractor_worker healthy`."""

    @property
    def beat_seconds(self) -> float:
        """Return the time between two heartbeats. It is short, because a worker whose lease ends during one
        slow answer of Redis would have its jobs computed twice.
        """
        return self.lease_seconds / 6

    @property
    def maintenance_seconds(self) -> float:
        """Return the time between two checks for jobs that dead workers held."""
        return self.lease_seconds / 6

    @property
    def stuck_seconds(self) -> float:
        """Return the time after which a job that was taken from the queue and not started is put back."""
        return self.lease_seconds / 2


class ApiSettings(BaseSettings):
    """Settings of the API's listener and of its limits. Environment: SPEAKER_API_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_API_", env_ignore_empty=True, frozen=True)

    host: str = "127.0.0.1"
    """Address to listen on. Addresses other than loopback require API keys, see SPEAKER_AUTH_*."""
    port: int = Field(8300, ge=0, le=65535)
    """Port to listen on. 0 takes any free port."""
    max_connections: int = Field(2000, gt=0)
    """Largest number of open connections. For a further one, the oldest idle connection of the address with
    the most connections is closed. While none is idle, further ones are answered with 503, except health
    checks.
    """
    max_active: int = Field(8, gt=0)
    """Largest number of active requests. Further requests wait, those of each namespace in a queue of their
    own. If requests keep waiting for longer than a burst lasts, some are refused with 429 or 503. While
    several namespaces send requests, each has an equal share. The number is lowered while the process is
    late. A request that waits for its body, a change, a decoder or the bucket is not active.
    """
    max_at_store: int = Field(16, gt=0)
    """Largest number of requests that fetch from the bucket, or delete there, at the same time. Further ones
    wait. A limit of 16 allows 800 files a second to be fetched from a bucket that is 20 ms away.
    """
    kept_bytes: int = Field(256 * 1024**2, ge=0)
    """Memory for answers to requests for artifacts, which are given again without asking Redis or the bucket.
    0 keeps none.
    """
    kept_answers: int = Field(100_000, ge=0)
    """Largest number of such answers."""
    redirect_seconds: int = Field(0, ge=0, le=3600)
    """A request for an artifact's file with `redirect=1` is redirected to the bucket, at an address that is
    valid for this long, also after the voice is deleted or the key revoked. 0 redirects nobody, and a local
    folder has no addresses. The clients must be able to reach the bucket at the registry's own address of it.
    """
    keep_alive_seconds: int = Field(65, gt=0)
    """Time for which an idle connection is kept open."""
    shutdown_seconds: int = Field(20, gt=0)
    """Time that requests under way may take to finish when the process is stopped."""

    trusted_proxies: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_names), AfterValidator(_networks)
    ] = ()
    """Addresses or networks, comma-separated, whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    cors_origins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Comma-separated origins whose web pages may call the API from a browser. None may by default."""

    @property
    def own_host(self) -> str:
        """Return the host at which this machine reaches the API, even if the API listens on all addresses."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - nobody listens here

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach the API."""
        return is_loopback(self.host)


class AccessSettings(BaseSettings):
    """Settings that decide who may call the API. Environment: SPEAKER_AUTH_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_AUTH_", env_ignore_empty=True, frozen=True)

    required: bool | None = None
    """Require a key for requests. If this is not set, a key is required when the API listens beyond loopback,
    when a proxy is configured, and when a bootstrap key or an OpenID provider is set.
    """
    bootstrap_key: SecretStr | None = None
    """API key with all rights, used to make other keys. A file is safer."""
    bootstrap_key_file: ReadableFile | None = None
    """File that holds the API key with all rights, such as a mounted container secret. `python -m
    services.registry_api new-key --out FILE` writes one that only its owner can read.
    """
    oidc_issuer: str | None = Field(default=None, pattern=r"^https?://[^?#]+[^/?#]$")
    """URL of an OpenID provider whose JWTs are accepted as well as API keys."""
    oidc_audience: str | None = None
    """Audience that the `aud` claim of a JWT must name. Must be set together with the issuer."""
    oidc_namespace_claim: str = Field("speaker_namespace", min_length=1)
    """Claim of a JWT that names the namespace. A token without it belongs to `default`."""
    oidc_scopes_claim: str = Field("scope", min_length=1)
    """Claim of a JWT that holds the scopes, as a list or separated by spaces. Unknown scopes are ignored."""
    oidc_client_id: str | None = Field(default=None, min_length=1, max_length=512)
    """Id of this registry's dashboard as a client of the OpenID provider. With it, people sign in to the
    dashboard at the provider.
    """
    oidc_client_secret: SecretStr | None = None
    """Secret of that client, if the provider gave it one. A file is safer."""
    oidc_client_secret_file: ReadableFile | None = None
    """File that holds the secret of that client, such as a mounted container secret."""
    oidc_sign_in_scopes: str = Field("openid", pattern=r"(^|.* )openid( .*|$)")
    """Scopes that the dashboard asks the provider for, separated by spaces. `openid` must be among them."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.bootstrap_key and self.bootstrap_key_file:
            raise ValueError(
                "SPEAKER_AUTH_BOOTSTRAP_KEY and SPEAKER_AUTH_BOOTSTRAP_KEY_FILE are set: give one of them"
            )
        if bool(self.oidc_issuer) != bool(self.oidc_audience):
            raise ValueError(
                "SPEAKER_AUTH_OIDC_ISSUER and SPEAKER_AUTH_OIDC_AUDIENCE go together: one of them is missing"
            )
        if self.oidc_client_id and not self.oidc_issuer:
            raise ValueError("SPEAKER_AUTH_OIDC_CLIENT_ID needs SPEAKER_AUTH_OIDC_ISSUER, which is missing")
        if self.oidc_client_secret and self.oidc_client_secret_file:
            raise ValueError(
                "SPEAKER_AUTH_OIDC_CLIENT_SECRET and SPEAKER_AUTH_OIDC_CLIENT_SECRET_FILE are set: give one "
                "of them"
            )
        if self.oidc_issuer and not _private(self.oidc_issuer):
            raise ValueError(
                f"SPEAKER_AUTH_OIDC_ISSUER: {without_credentials(self.oidc_issuer)} is plain http on another "
                "machine; use https"
            )
        return self

    @property
    def bootstrap(self) -> str | None:
        """Return the key with all rights, whether it was given directly or in a file."""
        return _secret_of(self.bootstrap_key, self.bootstrap_key_file)

    @property
    def client_secret(self) -> str | None:
        """Return the secret of the dashboard as a client, whether it was given directly or in a file."""
        return _secret_of(self.oidc_client_secret, self.oidc_client_secret_file)

    def required_at(self, api: ApiSettings) -> bool:
        """Return whether requests need a key. Raises ValueError if a setting would let strangers in."""
        return self.why_required_at(api) is not None

    def why_required_at(self, api: ApiSettings) -> str | None:
        """Return the setting that makes requests need a key, or None if they need none.

        Raises:
            ValueError: requests need no key, although strangers could send requests.
        """
        if self.required is False:
            self._check_no_strangers(api)
            return None
        reasons = {
            "SPEAKER_AUTH_REQUIRED is true": self.required,
            f"SPEAKER_API_HOST is {api.host!r}, which is not loopback": not api.loopback,
            # A proxy may forward requests of any client.
            "SPEAKER_API_TRUSTED_PROXIES is set": api.trusted_proxies,
            "SPEAKER_AUTH_BOOTSTRAP_KEY (or its file) is set": self.bootstrap is not None,
            "SPEAKER_AUTH_OIDC_ISSUER is set": self.oidc_issuer,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _check_no_strangers(self, api: ApiSettings) -> None:
        if not api.loopback:
            raise ValueError(
                f"SPEAKER_API_HOST is {api.host!r} and SPEAKER_AUTH_REQUIRED is false: without API keys the "
                "registry listens on loopback only (127.0.0.1, ::1, localhost)"
            )
        if api.trusted_proxies:
            raise ValueError(
                "SPEAKER_API_TRUSTED_PROXIES is set and SPEAKER_AUTH_REQUIRED is false: without API keys no "
                "proxy may stand in front of the registry"
            )


class RateSettings(BaseSettings):
    """Limits for callers of a registry that requires API keys. Environment: SPEAKER_LIMIT_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_LIMIT_", env_ignore_empty=True, frozen=True)

    requests_per_minute: int | None = Field(60_000, gt=0)
    """Requests that one key may make per minute, unless the key has a limit of its own."""
    uploads_per_minute: int | None = Field(600, gt=0)
    """Uploads that one key may make per minute, unless the key has a limit of its own."""
    namespace_requests_per_minute: int | None = Field(None, gt=0)
    """Requests that all keys of a namespace together may make per minute."""
    namespace_uploads_per_minute: int | None = Field(None, gt=0)
    """Uploads that all keys of a namespace together may make per minute."""
    waiting_requests: int | None = Field(250, gt=0)
    """Largest number of requests with one key that wait for a change (`wait=`, or as listeners to events)
    at the same time in one API process. With all keys of a namespace together, a quarter of
    SPEAKER_API_MAX_CONNECTIONS may wait.
    """
    arriving_uploads: int | None = Field(64, gt=0)
    """Largest number of uploads with one key that one API process has begun to read and not answered. With
    all keys of a namespace together, these uploads may be a quarter of SPEAKER_API_MAX_CONNECTIONS, and take
    half of SPEAKER_UPLOAD_HELD_BYTES.
    """
    failures_per_minute: int = Field(60, gt=0)
    """Requests without a valid key that one address may send before it must wait. Each API process counts for
    itself.
    """
    unknown_names_per_minute: int | None = Field(1_000, gt=0)
    """Names without a voice that one key may ask for per minute. Each of them is looked for in the bucket.
    Each API process counts for itself.
    """


class LogSettings(BaseSettings):
    """Verbosity of the log. Environment: SPEAKER_LOG_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_LOG_", env_ignore_empty=True, frozen=True)

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of the lines that are written."""


class MetricsSettings(BaseSettings):
    """Addresses at which the API and the workers serve their metrics, without API keys. Environment:
    SPEAKER_METRICS_*.
    """

    model_config = SettingsConfigDict(env_prefix="SPEAKER_METRICS_", env_ignore_empty=True, frozen=True)

    host: str = "127.0.0.1"
    """Address to listen on. If Prometheus runs on another machine, use an address of the network
    between them.
    """
    port: int | None = Field(None, ge=1, le=65535)
    """Port to listen on; no metrics port is opened by default. Each process of a machine needs a port
    of its own. With `make run`, the worker's is one higher.
    """


class TracesSettings(BaseSettings):
    """Destination of traces; it needs the extra `traces`. Environment: SPEAKER_TRACES_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_TRACES_", env_ignore_empty=True, frozen=True)

    endpoint: str | None = Field(None, pattern=r"^https?://[^/@]+(/.*)?$")
    """URL of an OpenTelemetry collector, for example `http://collector:4318/v1/traces`. Headers and
    certificates are set by OTEL_EXPORTER_OTLP_*. By default no traces are sent.
    """
    ratio: float = Field(1.0, ge=0, le=1)
    """Share of the traces that are recorded if they begin in this registry. A caller's `traceparent` decides
    for the caller's own trace.
    """


class ExtractorSettings(BaseSettings):
    """Encoders and weights that a worker loads. Environment: SPEAKER_EXTRACTOR_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_EXTRACTOR_", env_ignore_empty=True, frozen=True)

    profiles: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Comma-separated profiles that this worker serves. By default, all that the registry requires."""
    weights: str = Field(description="`hub`, `hub:<commit>`, the path of a folder, or `untrained`")
    """Source of the weights: `hub`, `hub:<commit>`, the path of a folder, or `untrained` (random, for trying
    out). A worker without this setting does not start, so that random voices are never made by mistake.
    """
    custom_weights: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Comma-separated profiles whose folders hold other weights than the published ones, because they were
    fine-tuned or saved again. Their digests are not compared with those of the published files. They are part
    of the fingerprint, and every surface says `custom weights`.
    """
    device: str = Field("cpu", pattern=r"cpu|cuda(:\d+)?")
    """Device to compute on: `cpu`, `cuda` or `cuda:N`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format that the encoders of Qwen3-TTS compute in: `float32`, or `bfloat16` as in vLLM-Omni. All
    other encoders always use float32, as in their engines.
    """
    threads: int = Field(4, gt=0)
    """Number of threads that read, prepare and publish clips while the device encodes other clips."""
    cache: Path = EXTRACTOR_CACHE
    """Folder that keeps, as safetensors, weights that are published as pickles or ONNX graphs. It also
    records which encoders were proved on this machine.
    """


class OmniVoiceSettings(BaseSettings):
    """Processing of clips as in OmniVoice's own package, which vLLM-Omni leaves out. Environment:
    SPEAKER_OMNIVOICE_*.
    """

    model_config = SettingsConfigDict(env_prefix="SPEAKER_OMNIVOICE_", env_ignore_empty=True, frozen=True)

    loudness: bool = False
    """Make a quiet clip louder. Artifacts do not record by how much, so speech made with them is as loud as
    the louder clip. OmniVoice's own package records the clip's level (`ref_rms`) and makes speech as quiet.
    """
    trim: bool = False
    """Shorten long pauses and the silence at both ends."""
    whole_frames: bool = False
    """Cut off the rest at the end of the clip that does not fill a frame of 40 ms."""
