"""What both clients are set up with (address, key, patience, cache), and how a request looks to httpx.

Reads a clip and two environment variables; what goes over the network is sent by the clients.
"""

import enum
import hashlib
import os
from pathlib import Path
from typing import IO, Any, Final, Literal

import httpx

import speaker_registry
from speaker_registry.cache import ArtifactCache
from speaker_registry.calls import Calls
from speaker_registry.errors import InvalidRequest, PayloadTooLarge, Unavailable
from speaker_registry.exchange import RetryPolicy, SendRequest, attempt_timeouts
from speaker_registry.fetching import Fetching
from speaker_registry.names import ACCEPTED_NAMESPACES, is_namespace

URL_VARIABLE: Final = "SPEAKER_REGISTRY_URL"
API_KEY_VARIABLE: Final = "SPEAKER_REGISTRY_API_KEY"
NAMESPACE_VARIABLE: Final = "SPEAKER_REGISTRY_NAMESPACE"
MAX_CLIP_BYTES = 64 * 1024**2
"""What is read of a clip at most. The registry's own limit is lower and its business."""
Audio = str | os.PathLike[str] | bytes | IO[bytes]
"""A path, the bytes themselves, or an open file."""


class Default(enum.Enum):
    CACHE = "a cache of its own"


class Session:
    """The base of both clients."""

    def __init__(
        self,
        url: str | None,
        api_key: str | None,
        namespace: str | None,
        policy: RetryPolicy,
        cache: ArtifactCache | Literal[Default.CACHE] | None,
    ) -> None:
        self.url = parse_url(url or os.environ.get(URL_VARIABLE, ""))
        key = parse_api_key(api_key or os.environ.get(API_KEY_VARIABLE, ""))
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",  # see exchange.BodyReader
            "user-agent": f"speaker-registry/{speaker_registry.__version__}",
        }
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        namespace = namespace or os.environ.get(NAMESPACE_VARIABLE) or ""
        if namespace:
            self._headers["x-speaker-namespace"] = parse_namespace(namespace)
        if cache is Default.CACHE:
            cache = ArtifactCache()
        self.cache: ArtifactCache | None = cache
        self._policy = policy
        self._calls = Calls(policy)
        # A cache without entries instead of no cache: one way less through the code.
        self._fetching = Fetching(
            policy, cache or ArtifactCache(max_entries=0), _scope(self.url, key, namespace)
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _arguments(self, send: SendRequest) -> dict[str, Any]:
        """Of httpx's `stream`, for one attempt."""
        request = send.request
        parts: list[tuple[str, Any]] = [(name, (None, value)) for name, value in request.fields.items()]
        if request.clip is not None:
            # Not the file's own name: it is nobody's business, and the registry looks at the bytes.
            parts.append(("audio_sample", ("clip", request.clip, "application/octet-stream")))
        return {
            "method": request.method,
            "url": self.url + request.path,
            "params": request.params or None,
            "headers": {**self._headers, **request.headers},
            "files": parts or None,
            "content": request.content,
            "timeout": httpx.Timeout(**attempt_timeouts(send, self._policy.clock())),
        }

    def _unreachable(self, error: Exception) -> Unavailable:
        reason = str(error) or type(error).__name__
        return Unavailable(f"no answer from {self.url}: {reason}")


def parse_url(text: str) -> str:
    """A registry's address without a slash at its end; a path in front of `/v1` is kept.

    Raises:
        ValueError: saying what is missing.
    """
    if not text:
        raise ValueError(f"no registry address: pass url= or set {URL_VARIABLE}")
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"the registry address is no URL: {error}") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError("the registry address must look like https://host[:port][/path]")
    if url.userinfo or url.query or url.fragment:
        # Not shown: there may be a password in it.
        raise ValueError(
            "the registry address must have no user, query or fragment; an API key is given as api_key="
        )
    return str(url).rstrip("/")


def parse_api_key(text: str) -> str:
    """Raises ValueError, without showing the key, if it cannot be sent as a header."""
    key = text.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError(f"the API key must be printable ASCII without blanks: see {API_KEY_VARIABLE}")
    return key


def read_clip(audio: Audio, what: str = "clip") -> bytes:
    """The bytes of a clip, or of something else that is sent. Read once, so that it can be sent again.

    Raises:
        PayloadTooLarge: over 64 MiB.
        OSError: the file cannot be read.
    """
    if isinstance(audio, bytes):
        clip = audio
    elif isinstance(audio, str | os.PathLike):
        with Path(audio).open("rb") as file:
            clip = file.read(MAX_CLIP_BYTES + 1)
    else:
        clip = audio.read(MAX_CLIP_BYTES + 1)
    if not isinstance(clip, bytes):
        raise InvalidRequest(f"the {what} must be a file opened in binary mode", param="audio_sample")
    if len(clip) > MAX_CLIP_BYTES:
        raise PayloadTooLarge(f"the {what} has over {MAX_CLIP_BYTES} bytes", param="audio_sample")
    return clip


def parse_namespace(text: str) -> str:
    """Raises ValueError for what cannot be one."""
    if not is_namespace(text):
        raise ValueError(f"the namespace is {text[:80]!a}; accepted: {ACCEPTED_NAMESPACES}")
    return text


def _scope(url: str, key: str, namespace: str) -> str:
    """Hashed, so that no key lies about in a cache."""
    return hashlib.sha256(f"{url}\0{key}\0{namespace}".encode()).hexdigest()
