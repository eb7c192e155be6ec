"""Settings: small, frozen, one class per concern, read from environment variables with a prefix of their own.

`__main__` builds them and hands them to whatever needs them. Knows no service; nothing connects here.
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
"""That a registry takes, if it is not told otherwise."""
LONGEST_JOB_SECONDS = 24 * 3600
"""The longest time limit that a job may have. Timers overflow at much longer ones."""


def without_credentials(text: str) -> str:
    """Of the URL in it."""
    return re.sub("//.*@", "//…@", text)


def is_loopback(host: str) -> bool:
    """Whether it names this machine and is reached from here alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _readable(path: Path) -> Path:
    """Raises ValueError. Whoever opens it later could not name the variable that it is from."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise ValueError("this is no regular file")
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"this file cannot be read: {error.strerror}") from None
    return path


ReadableFile = Annotated[Path, AfterValidator(_readable)]


def _secret_of(given: SecretStr | None, file: Path | None) -> str | None:
    """As it was given, or from the file."""
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
    """Where objects are stored. Environment: SPEAKER_STORE_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_STORE_", env_ignore_empty=True, frozen=True)

    url: Annotated[str, AfterValidator(_parse_store_url)]
    """`file:///folder` or `s3://bucket/prefix`."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/]+$")
    """An S3-compatible server, e.g. `https://s3.example.org`. Without it: AWS."""
    region: str | None = None
    """Without it: AWS_REGION, else us-east-1."""
    access_key_id: str | None = None
    """Without keys here, boto3 looks for them: AWS_*, its files, web identity, the machine's role."""
    secret_access_key: SecretStr | None = None
    """Goes with the key id; rather give a file."""
    secret_access_key_file: ReadableFile | None = None
    """A file holding the secret key, as container secrets are mounted."""
    ca_file: ReadableFile | None = None
    """Certificates (PEM) of a private authority that signed the endpoint's."""
    allow_http: bool = False
    """Send audio and signatures in the clear to an endpoint on another machine."""
    create_bucket: bool = False
    """Make the bucket or the folder at the start if there is none. Without it, a mistyped name is refused."""
    known_as: str | None = Field(default=None, max_length=300)
    """Where the bucket or the folder says that it is, if it has another name or address here. Without it, one
    that says that it is elsewhere is taken for a copy and refused.
    """
    start_seconds: float = Field(default=30, ge=0)
    """How long a start tries again to reach the store, with longer and longer pauses, before it gives up."""
    request_seconds: float = Field(default=25, gt=0, le=30)
    """For one request and its answer."""
    retry_seconds: float = Field(default=25, ge=0, le=30)
    """After this no request is repeated, so that a call ends within the sum of the two."""

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
        """The local folder, or None for a bucket."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def bucket(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        """What every key in the bucket starts with; empty, or without a `/` at either end."""
        return urlsplit(self.url).path.strip("/")

    @property
    def secret(self) -> str | None:
        """The secret key, from wherever it was given."""
        return _secret_of(self.secret_access_key, self.secret_access_key_file)


class UploadLimits(BaseSettings):
    """What we accept as reference audio, and what decoding it may cost. Environment: SPEAKER_UPLOAD_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_UPLOAD_", env_ignore_empty=True, frozen=True)

    max_bytes: int = Field(10 * 1024**2, gt=0)
    """Of a clip's file as uploaded, 10 MiB by default. The form may have 256 KiB besides it."""
    min_seconds: float = Field(1.0, gt=0)
    """A clip of exactly this length is accepted. Below, speaker encoders have little to go by."""
    max_seconds: float = Field(LONGEST_CLIP_SECONDS, gt=0)
    """A clip of exactly this length is accepted. Bounds the memory that one clip takes everywhere after."""
    decode_seconds: float = Field(10.0, gt=0)
    """How long decoding one clip may take, by the clock and by the processor. Longer: it is refused."""
    decode_memory_bytes: int = Field(256 * 1024**2, ge=64 * 1024**2)
    """What decoding one clip may take beyond the decoding libraries' own memory."""
    decoders: int = Field(4, gt=0)
    """Clips decoded at the same time by one API process. Each is a process of its own."""
    spare_decoders: int = Field(1, ge=0)
    """Such processes kept ready: a clip that finds one is decoded in half the time. 3 MiB each."""
    decoder_wait_seconds: float = Field(10.0, gt=0)
    """How long an upload waits for one of them before it is told to come back later."""
    require_seccomp: bool = False
    """Whether to decode nothing where the kernel or the container rules out the seccomp filter. Without it a
    clip that takes over its decoder can open neither files nor sockets, but make other system calls.
    """
    held_bytes: int = Field(192 * 1024**2, gt=0)
    """Of all uploads that one API process has begun to read and not answered: in memory, and what arrives of
    them in /tmp. Others are told to come back later.
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
    """Whether nobody else can listen in on what is sent there."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def _names(text: object) -> object:
    return [name.strip() for name in text.split(",") if name.strip()] if isinstance(text, str) else text


def _networks(names: tuple[str, ...]) -> tuple[str, ...]:
    """What could not be read would be trusted by nobody's decision, or not at all."""
    for name in names:
        try:
            ipaddress.ip_network(name)
        except ValueError as error:
            raise ValueError(
                f"{error}; accepted: addresses and networks, such as 10.1.2.3 and 10.1.0.0/16"
            ) from None
    return names


class RegistrySettings(BaseSettings):
    """What this registry asks of its voices; the same for API and workers. Environment: the names given
    below.
    """

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True, populate_by_name=True)

    profiles: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = Field(
        ("qwen3-tts-0.6b",), validation_alias="SPEAKER_PROFILES"
    )
    """Extracted for every upload, comma-separated."""
    max_uploaded: int = Field(1000, gt=0, validation_alias="SPEAKER_MAX_UPLOADED")
    """Voices in one namespace, at most. A new voice counts from its upload's start, and one whose upload
    failed for up to 26 minutes, while it may still be stored; sent again, it is let in. While the index is
    rebuilt after a loss of Redis, only the voices that are in count.
    """
    max_stored_bytes: int | None = Field(None, gt=0, validation_alias="SPEAKER_MAX_BYTES")
    """Of all clips, embeddings, texts and brought artifacts in one namespace, as they were sent. Artifacts
    that are made here do not count. Uploads on their way at the same moment may go beyond. Without it: as
    much as there is room for.
    """
    max_text_bytes: int = Field(64 * 1024**2, gt=0, validation_alias="SPEAKER_MAX_TEXT_BYTES")
    """Of the names, consents, transcripts and descriptions of all versions in one namespace, in UTF-8; 64 MiB
    by default. Redis holds them. Uploads on their way at the same moment may go beyond.
    """
    max_versions: int = Field(1000, gt=0, validation_alias="SPEAKER_MAX_VERSIONS")
    """Of one voice, at most; uploads on their way at the same moment may go beyond. Each takes 2.5 KiB of
    Redis, and its texts.
    """
    max_builds: int = Field(20, gt=0, lt=10_000, validation_alias="SPEAKER_MAX_BUILDS")
    """Of one artifact: how often it may be made by force, or brought, at most."""
    registration_policy: Literal["overwrite", "immutable"] = Field(
        "overwrite", validation_alias="VLLM_OMNI_SPEAKER_REGISTRATION_POLICY"
    )
    """`immutable`: a name must be deleted before it is registered again."""
    max_attempts: int = Field(3, gt=0, le=4, validation_alias="SPEAKER_MAX_ATTEMPTS")
    """Tries of one extraction that fails in a way which may pass."""
    redis_url: str = Field("redis://127.0.0.1:6379/0", validation_alias="SPEAKER_REDIS_URL", repr=False)
    """`redis://`, `rediss://` or `unix://`; one primary."""
    redis_password: SecretStr | None = Field(None, validation_alias="SPEAKER_REDIS_PASSWORD")
    """Instead of one in the URL; rather give a file."""
    redis_password_file: ReadableFile | None = Field(None, validation_alias="SPEAKER_REDIS_PASSWORD_FILE")
    """A file holding it, as container secrets are mounted."""
    job_seconds: int = Field(120, gt=0, le=LONGEST_JOB_SECONDS, validation_alias="SPEAKER_JOB_SECONDS")
    """One attempt, at most: a worker that takes longer is taken for hung. At most 86400."""

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.redis_password and self.redis_password_file:
            raise ValueError(
                "SPEAKER_REDIS_PASSWORD and SPEAKER_REDIS_PASSWORD_FILE are set: give one of them"
            )
        return self

    @property
    def redis_address(self) -> str:
        """The URL with the password, wherever that was given: not to be shown."""
        password = _secret_of(self.redis_password, self.redis_password_file)
        parts = urlsplit(self.redis_url)
        if password is None or parts.password is not None:
            return self.redis_url
        place = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{parts.username or ''}:{quote(password, safe='')}@{place}").geturl()


class HousekeepingSettings(BaseSettings):
    """Repairs and sweeps, which each API process does. Environment: SPEAKER_HOUSEKEEPING_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_HOUSEKEEPING_", env_ignore_empty=True, frozen=True)

    turn_seconds: float = Field(1.0, gt=0)
    """Between two looks at what is due."""
    sweep_seconds: float = Field(86_400, gt=0)
    """Between two looks at everything."""
    grace_seconds: float = Field(86_400, ge=3600)
    """Data without a record is left alone this long: its upload may be on its way, its worker slow."""
    deleted_grace_seconds: float = Field(86_400, ge=0)
    """A deleted voice's data stays this long."""
    rebuild_threads: int = Field(16, gt=0)
    """Voices read at the same time while the index is rebuilt from a bucket. One thread reads a folder."""
    sweep_threads: int = Field(4, gt=0)
    """Voices looked at at the same time in a sweep, which is in no hurry."""


class WorkerSettings(BaseSettings):
    """How a worker takes jobs and shows that it lives. Environment: SPEAKER_WORKER_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_WORKER_", env_ignore_empty=True, frozen=True)

    lease_seconds: int = Field(30, ge=2)
    """A job in hand goes to another worker this long after its worker's last beat."""
    beat_seconds: float = Field(5, gt=0)
    """Between two signs of life."""
    poll_seconds: float = Field(1, ge=0.05, le=10)
    """An idle worker waits for news this long at a time; about as long it takes to stop."""
    batch_size: int = Field(32, ge=1, le=1000)
    """Jobs of one queue taken at a time, at most."""
    stuck_seconds: float = Field(15, gt=0)
    """A job taken from the queue and not started is handed back after this."""
    maintenance_seconds: float = Field(5, gt=0)
    """Between two looks for what dead workers held."""
    beat_file: Path | None = None
    """Where each beat is written, for `python -m services.extractor_worker healthy`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.beat_seconds * 3 > self.lease_seconds:
            raise ValueError(
                f"SPEAKER_WORKER_LEASE_SECONDS is {self.lease_seconds}, which is less than three times "
                f"SPEAKER_WORKER_BEAT_SECONDS, {self.beat_seconds:g}: a worker would lose its jobs for one "
                "late beat"
            )
        return self


class ApiSettings(BaseSettings):
    """How the API listens. Environment: SPEAKER_API_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_API_", env_ignore_empty=True, frozen=True)

    host: str = "127.0.0.1"
    """Beyond loopback only with API keys, see SPEAKER_AUTH_*."""
    port: int = Field(8300, ge=0, le=65535)
    """0: any free one."""
    max_connections: int = Field(2000, gt=0)
    """Open at the same time; more are answered 503."""
    max_active: int = Field(8, gt=0)
    """Requests at work at the same time. More wait, those of each namespace in a queue of their own, and are
    answered 429 or 503 where too many wait for longer than a burst takes. While several namespaces ask, each
    has an equal share. Fewer are at work if the process is late. What waits, for its body, a change, a
    decoder or the bucket, does not count.
    """
    max_at_store: int = Field(16, gt=0)
    """Requests that fetch from the bucket, or delete there, at the same time; more wait for their turn. From
    a bucket that is 20 ms away 16 fetch 800 files a second.
    """
    keep_alive_seconds: int = Field(65, gt=0)
    """An idle connection is kept so long."""
    shutdown_seconds: int = Field(20, gt=0)
    """What is under way may take this long to finish when the process is told to stop."""

    trusted_proxies: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_names), AfterValidator(_networks)
    ] = ()
    """Addresses or networks, comma-separated, whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    cors_origins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Web pages of these origins, comma-separated, may call the API from a browser. None may otherwise."""

    @property
    def own_host(self) -> str:
        """Where this machine reaches it, also where it listens on all addresses."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - nobody listens here

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


class AccessSettings(BaseSettings):
    """Who may call the API. Environment: SPEAKER_AUTH_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_AUTH_", env_ignore_empty=True, frozen=True)

    required: bool | None = None
    """Whether requests need a key. Without it: they do where the API listens beyond loopback or behind a
    proxy, and where one of the following is set.
    """
    bootstrap_key: SecretStr | None = None
    """A key with all rights, to make others with. Rather give a file."""
    bootstrap_key_file: ReadableFile | None = None
    """A file holding it, as container secrets are mounted: `python -m services.registry_api new-key --out
    FILE` writes one that only its owner can read.
    """
    oidc_issuer: str | None = Field(default=None, pattern=r"^https?://[^?#]+[^/?#]$")
    """JWTs of this OpenID provider are taken as well as keys."""
    oidc_audience: str | None = None
    """What their `aud` must name; goes with the issuer."""
    oidc_namespace_claim: str = Field("speaker_namespace", min_length=1)
    """Names the namespace; a token without it is of `default`."""
    oidc_scopes_claim: str = Field("scope", min_length=1)
    """Holds the scopes, as a list or separated by blanks; what is none of ours is passed over."""

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
        if self.oidc_issuer and not _private(self.oidc_issuer):
            raise ValueError(
                f"SPEAKER_AUTH_OIDC_ISSUER: {without_credentials(self.oidc_issuer)} is plain http on another "
                "machine; use https"
            )
        return self

    @property
    def bootstrap(self) -> str | None:
        """The key with all rights, from wherever it was given."""
        return _secret_of(self.bootstrap_key, self.bootstrap_key_file)

    def required_at(self, api: ApiSettings) -> bool:
        """Whether requests need a key. Raises ValueError where that would let strangers in."""
        return self.why_required_at(api) is not None

    def why_required_at(self, api: ApiSettings) -> str | None:
        """The setting because of which requests need a key; None where they need none.

        Raises:
            ValueError: that would let strangers in.
        """
        if self.required is False:
            self._check_no_strangers(api)
            return None
        reasons = {
            "SPEAKER_AUTH_REQUIRED is true": self.required,
            f"SPEAKER_API_HOST is {api.host!r}, which is not loopback": not api.loopback,
            # Whom a proxy lets through may be anybody.
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
    """How often may be asked, where keys are required. Environment: SPEAKER_LIMIT_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_LIMIT_", env_ignore_empty=True, frozen=True)

    requests_per_minute: int | None = Field(60_000, gt=0)
    """With one key, unless it was made for another number."""
    uploads_per_minute: int | None = Field(600, gt=0)
    """With one key, unless it was made for another number."""
    namespace_requests_per_minute: int | None = Field(None, gt=0)
    """With all keys of a namespace together."""
    namespace_uploads_per_minute: int | None = Field(None, gt=0)
    """With all keys of a namespace together."""
    waiting_requests: int | None = Field(250, gt=0)
    """With one key at the same time: requests that wait for a change (`wait=`) in one API process. With all
    keys of a namespace together they may be a quarter of SPEAKER_API_MAX_CONNECTIONS.
    """
    arriving_uploads: int | None = Field(64, gt=0)
    """With one key at the same time: uploads that one API process has begun to read and not answered.
    With all keys of a namespace together they may be a quarter of SPEAKER_API_MAX_CONNECTIONS, and take half
    of SPEAKER_UPLOAD_HELD_BYTES.
    """
    failures_per_minute: int = Field(60, gt=0)
    """Keys that are none, from one address, until it is told to wait. Counted by each API process."""


class LogSettings(BaseSettings):
    """How much is logged. Environment: SPEAKER_LOG_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_LOG_", env_ignore_empty=True, frozen=True)

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The least important lines that are written."""


class MetricsSettings(BaseSettings):
    """Where API and workers show their metrics, without keys. Environment: SPEAKER_METRICS_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_METRICS_", env_ignore_empty=True, frozen=True)

    host: str = "127.0.0.1"
    """For Prometheus on another machine: an address of the network that it comes from."""
    port: int | None = Field(None, ge=1, le=65535)
    """One for each process of a machine; with `make run`, the worker's is one higher. Without it: none."""


class TracesSettings(BaseSettings):
    """Where traces go; needs the extra `traces`. Environment: SPEAKER_TRACES_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_TRACES_", env_ignore_empty=True, frozen=True)

    endpoint: str | None = Field(None, pattern=r"^https?://[^/@]+(/.*)?$")
    """An OpenTelemetry collector's, e.g. `http://collector:4318/v1/traces`; headers and certificates by
    OTEL_EXPORTER_OTLP_*. Without it: no traces.
    """
    ratio: float = Field(1.0, ge=0, le=1)
    """Of the traces that begin here. Whoever calls with a `traceparent` has decided already."""


class ExtractorSettings(BaseSettings):
    """What a worker loads. Environment: SPEAKER_EXTRACTOR_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_EXTRACTOR_", env_ignore_empty=True, frozen=True)

    profiles: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Served by this worker, comma-separated; empty: all that the registry requires."""
    weights: str = "untrained"
    """`untrained` (random: for trying out), the path of a folder, `hub`, or `hub:<commit>`."""
    custom_weights: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Profiles, comma-separated, whose folder holds other weights than the published ones: fine-tuned, or
    saved again. Their sums are not held against the published files; they go into the fingerprint, and every
    surface says `custom weights`.
    """
    device: str = Field("cpu", pattern=r"cpu|cuda(:\d+)?")
    """`cpu`, `cuda` or `cuda:N`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What Qwen3-TTS' encoders compute in: `float32`, or `bfloat16` as vLLM-Omni does. All others are always
    float32, as in their engines.
    """
    threads: int = Field(4, gt=0)
    """For reading, preparing and publishing clips, beside the device."""
    cache: Path = EXTRACTOR_CACHE
    """Folder where weights that are published as pickles or ONNX graphs are kept as safetensors, and where it
    is remembered which encoders proved themselves on this machine.
    """
    roll_back: bool = False
    """Make this worker's fingerprint current again although its profile moved on from it."""


class OmniVoiceSettings(BaseSettings):
    """What OmniVoice's own package does to a clip and vLLM-Omni does not. Environment:
    SPEAKER_OMNIVOICE_*.
    """

    model_config = SettingsConfigDict(env_prefix="SPEAKER_OMNIVOICE_", env_ignore_empty=True, frozen=True)

    loudness: bool = False
    """Make a quiet clip louder. No artifact says by how much, so what is spoken with it stays loud; the
    package keeps it (`ref_rms`) and makes speech as quiet as the clip was.
    """
    trim: bool = False
    """Shorten long pauses, and silence at both ends."""
    whole_frames: bool = False
    """Leave out what does not fill a frame of 40 ms at the end."""
