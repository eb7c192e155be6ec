"""The configuration that both clients share (address, API key, timeouts, cache) and the arguments for httpx.

This module reads clips from files and reads three environment variables. It sends nothing over the network.
"""

import enum
import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import IO, Any, Literal, Self

import httpx
from numpy.typing import ArrayLike

import speaker_registry
from speaker_registry.arguments import Upload
from speaker_registry.cache import ArtifactCache
from speaker_registry.calls import Calls
from speaker_registry.environment import (
    API_KEY_VARIABLE,
    NAMESPACE_VARIABLE,
    URL_VARIABLE,
    parse_api_key,
    parse_namespace,
    parse_url,
)
from speaker_registry.errors import InvalidRequest, PayloadTooLarge
from speaker_registry.exchange import Plan, Result, RetryPolicy, SendRequest, attempt_timeouts
from speaker_registry.fetching import Fetching, forget_voice
from speaker_registry.validation import is_from_zero, shortened

MAX_CLIP_BYTES = 64 * 1024**2
"""Maximum number of bytes that are read of a clip. The registry's own limit is lower."""
Audio = str | os.PathLike[str] | bytes | IO[bytes]
"""A path, the bytes themselves, or an open file."""


TRANSPORT_ERRORS = (httpx.TransportError, httpx.InvalidURL, UnicodeError)
"""The errors that httpx raises if there is no answer, or only one that it cannot read. It also parses the
addresses of redirects that it does not follow.
"""


class Default(enum.Enum):
    """Marks arguments that were not given, where None has a meaning of its own."""

    CACHE = "a new cache for this client"
    KEEP = "the current value"


class Session:
    """Base class of both clients."""

    url: str
    """Address of the registry."""
    cache: ArtifactCache | None
    """Cache for fetched artifacts, or None if caching is off."""

    def __init__(
        self,
        url: str | None,
        api_key: str | None,
        namespace: str | None,
        policy: RetryPolicy,
        cache: ArtifactCache | Literal[Default.CACHE] | None,
    ) -> None:
        if not (is_from_zero(policy.timeout_seconds) and 0 < policy.timeout_seconds < math.inf):
            raise ValueError(f"timeout is {shortened(policy.timeout_seconds)}; accepted: seconds above 0")
        if not is_from_zero(policy.retries):
            raise ValueError(f"retries is {shortened(policy.retries)}; accepted: a number from 0")
        self.url = parse_url(url or os.environ.get(URL_VARIABLE, ""))
        key = parse_api_key(os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key)
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",  # see exchange.BodyReader
            "user-agent": f"speaker-registry/{speaker_registry.__version__}",
        }
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        namespace = os.environ.get(NAMESPACE_VARIABLE, "") if namespace is None else namespace
        if namespace:
            self._headers["x-speaker-namespace"] = parse_namespace(namespace)
        if cache is Default.CACHE:
            cache = ArtifactCache()
        self.cache = cache
        # A cache without entries stands for no cache, so that the code has only one path.
        used, scope = cache or ArtifactCache(max_entries=0), _scope(self.url, key, namespace)
        self._policy = replace(policy, on_gone=partial(forget_voice, used, scope))
        self._calls = Calls(self._policy)
        self._fetching = Fetching(self._policy, used, scope)

    @classmethod
    def from_context(cls, name: str | None = None, **options: Any) -> Self:
        """Make a client for a registry that `speaker-registry login` has stored.

        Args:
            name: The context. Defaults to what the command line would use.
            options: Further arguments of the client, such as `timeout`.

        Raises:
            ValueError: There is no such context, or the configuration file cannot be used.
            OSError: The configuration file cannot be read.
        """
        from speaker_registry.contexts import connection  # noqa: PLC0415  only needed here, and needs this

        return cls(**connection(context=name), **options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _closed(self) -> RuntimeError:
        return RuntimeError(f"{self!r} was closed, and sends no more requests; make another client")

    def expire(self, name: str | None = None) -> None:
        """Ask the registry again before artifacts of a voice, or of all voices, are returned from the cache.

        Call this when something has changed, or when a change may have been missed. The bytes are kept, so an
        artifact that is unchanged is not transferred again. This sends nothing and takes microseconds.

        Args:
            name: The voice that has changed. `stale_if_error` does not return its former artifacts either.
                None means that any voice may have changed.
        """
        self._fetching.expire(name)

    def _noticed(self, name: str, change: Plan[Result]) -> Plan[Result]:
        """Execute a change of a voice and expire the voice, also if the answer is lost."""
        try:
            return (yield from change)
        finally:
            self.expire(name)

    def _arguments(self, send: SendRequest) -> dict[str, Any]:
        """Return the arguments for `httpx.Client.stream` for one attempt."""
        request = send.request
        parts: list[tuple[str, Any]] = [(name, (None, value)) for name, value in request.fields.items()]
        if request.clip is not None:
            # The file's own name is private, and the registry looks only at the bytes.
            parts.append(("audio", ("clip", request.clip, "application/octet-stream")))
        return {
            "method": request.method,
            "url": self.url + request.path,
            "params": request.params or None,
            "headers": {**self._headers, **request.headers},
            "files": parts or None,
            "content": request.content,
            "timeout": httpx.Timeout(**attempt_timeouts(send, self._policy.clock())),
        }


def no_cookies() -> CookieJar:
    """Return a jar that keeps nothing. httpx would collect the cookies of proxies without a bound."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def read_clip(audio: Audio, what: str = "clip") -> bytes:
    """Read the bytes of a clip, or of another file to be uploaded, so that they can be sent more than once.

    Args:
        what: Noun for the file in error messages.

    Raises:
        PayloadTooLarge: The file has more than 64 MiB.
        OSError: The file cannot be read.
        InvalidRequest: The file was not opened in binary mode.
    """
    if isinstance(audio, bytes):
        clip = audio
    elif isinstance(audio, str | os.PathLike):
        with Path(audio).open("rb") as file:
            clip = file.read(MAX_CLIP_BYTES + 1)
    else:
        clip = audio.read(MAX_CLIP_BYTES + 1)
    if not isinstance(clip, bytes):
        raise InvalidRequest(f"the {what} must be a file opened in binary mode", param="audio")
    if len(clip) > MAX_CLIP_BYTES:
        raise PayloadTooLarge(
            f"the {what} has more than {MAX_CLIP_BYTES} bytes, which is the maximum", param="audio"
        )
    return clip


def read_upload(
    audio: Audio | None,
    embedding: ArrayLike | None,
    consent: str,
    ref_text: str | None,
    description: str | None,
) -> Upload:
    """Return what is uploaded as a version, with the bytes of its clip. Raises the same errors as
    `read_clip`.
    """
    clip = None if audio is None else read_clip(audio)
    return Upload(clip=clip, embedding=embedding, consent=consent, ref_text=ref_text, description=description)


def _scope(url: str, key: str, namespace: str) -> str:
    """Identify registry, API key and namespace in a cache. The parts are hashed, so that no key is kept
    there.
    """
    return hashlib.sha256(f"{url}\0{key}\0{namespace}".encode()).hexdigest()


def edited_members(
    description: str | Literal[Default.KEEP] | None,
    labels: Mapping[str, str | None] | None,
    pinned: bool | None,
    promotion: str | None,
) -> dict[str, object]:
    """Return the members of the request body that edits a voice, without those that stay unchanged."""
    members: dict[str, object] = {} if description is Default.KEEP else {"description": description}
    return {
        **members,
        **({} if labels is None else {"labels": dict(labels)}),
        **({} if pinned is None else {"pinned": pinned}),
        **({} if promotion is None else {"promotion": promotion}),
    }
