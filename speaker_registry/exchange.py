"""The exchange of one request: retries, pauses, deadlines, and the error that an answer stands for.

This module does no I/O. A *plan* is a generator that yields steps (`SendRequest`, `Sleep`), receives the
outcome of each step, and returns a result. The loops that execute plans are in `client` and `async_client`,
so that the logic is shared by both.
"""

import random
import re
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from speaker_registry.errors import (
    BY_CODE,
    Conflict,
    InvalidApiKey,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    PreconditionFailed,
    SpeakerRegistryError,
    Unavailable,
    UnsupportedAudio,
    VoiceDeleted,
    VoiceNotFound,
)
from speaker_registry.paths import voice_of
from speaker_registry.schemas import ErrorBody, ErrorEnvelope

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_JSON_BYTES = 10 * 1024**2
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
_READ_SECONDS = 30.0
_CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. The same request can be sent several times."""

    method: str = "GET"
    path: str
    """Percent-encoded path, starting with `/v1`."""
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    """Fields of a multipart form."""
    clip: bytes | None = field(default=None, repr=False)
    """Content of the form field `audio`."""
    content: bytes | None = field(default=None, repr=False)
    """Request body, if the body is not a form."""
    max_bytes: int = MAX_JSON_BYTES
    """Maximum size of the answer. A longer answer is refused before it is read."""
    wait_seconds: float = 0.0
    """The time for which the server may hold the answer back. It is added to the deadline and to the timeouts
    of reads and writes.
    """
    repeatable: bool = True
    """True if sending the request twice has the same effect as sending it once. Otherwise the request is only
    sent again if an answer says that nothing was done.
    """


def with_json(
    path: str,
    content: str,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    repeatable: bool = True,
) -> Request:
    """Return a request with a JSON body."""
    return Request(
        method=method,
        path=path,
        headers={"content-type": "application/json", **(headers or {})},
        content=content.encode(),
        repeatable=repeatable,
    )


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A step that sends one HTTP request. Its outcome is a `Reply`, or the error that prevented one."""

    request: Request
    deadline: float
    """Time on the policy's clock at which the attempt is given up, with the outcome `Unavailable`."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """A step that pauses the plan. Its outcome is None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """A step that calls a function that may block for milliseconds. Its outcome is None."""

    function: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Join:
    """A step that waits until a future is done, or for `seconds`. Its outcome is None."""

    done: "Future[None]"
    seconds: float


Step = SendRequest | Sleep | Work | Join
Outcome = Reply | SpeakerRegistryError | None
"""Result of a step. A `SendRequest` leads to a reply or an error, every other step to None."""
Result = TypeVar("Result")
Plan = Generator[Step, Outcome, Result]
OnPause = Callable[[SpeakerRegistryError, float], object]
"""Called before a pause, with the registry's answer and the seconds by which the wait gets longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The time and the number of attempts that a client spends on an answer, and what it does if a voice is
    gone.
    """

    timeout_seconds: float = 60.0
    """Maximum duration of one call, including all attempts and pauses."""
    retries: int = 3
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    """Returns a random number from 0 to 1 for the jitter of the pauses."""
    on_pause: OnPause = lambda *_: None
    """Called before each pause that the registry asks for."""
    on_gone: Callable[[str], Plan[None]] | None = None
    """Called with the name or id of a voice, in its path, that the registry says does not exist or was
    deleted.
    """


def exchange(policy: RetryPolicy, request: Request) -> Plan[Reply]:
    """Send a request, and retry it until there is a final answer or the policy's limits are reached.

    Returns:
        An answer with status 2xx or 304, or the 404 to a DELETE that was retried.

    Raises:
        SpeakerRegistryError: The error of the last answer, or `Unavailable` if there was no answer.
    """
    deadline = policy.clock() + policy.timeout_seconds + request.wait_seconds
    attempt = 0
    while True:
        outcome = yield SendRequest(request, deadline)
        assert outcome is not None, "a SendRequest has an outcome"
        error = error_of(outcome, request)
        if isinstance(outcome, Reply) and (
            error is None or _deleted_by_lost_attempt(request, attempt, error)
        ):
            return outcome
        assert error is not None
        seconds = pause_before(attempt, error.retry_after_seconds, policy.chance())
        # If the deadline passes during the pause, the error is raised now instead of later.
        if (
            not worth_retrying(request, outcome)
            or attempt >= policy.retries
            or policy.clock() + seconds >= deadline
        ):
            is_gone = isinstance(error, VoiceNotFound | VoiceDeleted)
            if policy.on_gone and is_gone and (voice := voice_of(request.path)):
                yield from policy.on_gone(voice)
            raise error
        if error.retry_after_seconds is not None:
            policy.on_pause(error, seconds)
        yield Sleep(seconds)
        attempt += 1


def _deleted_by_lost_attempt(request: Request, attempt: int, error: SpeakerRegistryError) -> bool:
    """Return True if a retried DELETE got 404: an earlier attempt, whose answer was lost, has deleted the
    object.
    """
    return request.method == "DELETE" and attempt > 0 and isinstance(error, NotFound)


def worth_retrying(request: Request, outcome: Reply | SpeakerRegistryError) -> bool:
    """Decide whether a request is sent again.

    Most requests are repeatable; uploads are, because they carry an idempotency key. A request that is not
    repeatable is sent again only after 429, which the server answers before it does anything. A lost answer
    or a 5xx may hide a success.
    """
    if not request.repeatable:
        return isinstance(outcome, Reply) and outcome.status == 429
    if isinstance(outcome, SpeakerRegistryError):
        return outcome.retryable
    should_retry = outcome.headers.get("x-should-retry", "").lower()
    if should_retry in {"true", "false"}:
        return should_retry == "true"
    return _is_temporary(outcome.status)


def _is_temporary(status: int) -> bool:
    return status in {408, 429} or status >= 500


def pause_before(attempt: int, retry_after_seconds: float | None, chance: float) -> float:
    """Return the pause in seconds before the next attempt: exponential backoff with full jitter.

    The time that the server asked for in `Retry-After` is added. The jitter is kept in that case too, so that
    many clients that got the same `Retry-After` do not return at the same instant.
    """
    ceiling = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(attempt, 10))
    return (retry_after_seconds or 0.0) + chance * ceiling


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Parse `Retry-After`, which is a number of seconds or a date. Returns None if it is missing or
    invalid.
    """
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
        return float(value)
    when = _unix_time(value)
    # The server's clock is preferred if the answer has a `Date`, because the local clock may be wrong.
    now = _unix_time(headers.get("date", "")) or time.time()
    return None if when is None else max(0.0, when - now)


def _unix_time(text: str) -> float | None:
    try:
        seconds: float = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, IndexError):
        return None
    return seconds


def attempt_timeouts(send: SendRequest, now: float) -> dict[str, float]:
    """Return httpx's timeouts in seconds for one attempt. No timeout is longer than the time left until
    the deadline.
    """
    left = max(0.001, send.deadline - now)
    read = min(_READ_SECONDS + send.request.wait_seconds, left)
    return {"connect": min(_CONNECT_SECONDS, left), "pool": left, "write": read, "read": read}


class BodyReader:
    """Collects the body of an answer. It refuses bodies that are too long, too late, cut short or
    compressed.
    """

    def __init__(self, send: SendRequest, headers: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._send, self._clock = send, clock
        self._chunks: list[bytes] = []
        self._size = 0
        declared = headers.get("content-length", "")
        self._declared = int(declared) if declared.isascii() and declared.isdigit() else None
        if headers.get("content-encoding", "identity") != "identity":
            # The client does not ask for compression: a few bytes could expand to gigabytes before they are
            # counted.
            raise Unavailable("the answer is compressed although that was not asked for")
        self._check_size(self._declared or 0)

    def add(self, chunk: bytes) -> None:
        """Append a chunk. Raises `PayloadTooLarge` or `Unavailable` if the answer is too long or too late."""
        self._size += len(chunk)
        self._check_size(self._size)
        if self._clock() >= self._send.deadline:
            raise Unavailable("the registry did not finish its answer in time")
        self._chunks.append(chunk)

    def whole(self) -> bytes:
        """Return the complete body. Raises `Unavailable` if it is shorter than the answer declared."""
        if self._declared is not None and self._declared != self._size:
            raise Unavailable(f"the answer was cut short after {self._size} of {self._declared} bytes")
        return b"".join(self._chunks)

    def _check_size(self, size: int) -> None:
        most = self._send.request.max_bytes
        if size > most:
            raise PayloadTooLarge(f"the registry's answer has more than {most} bytes, which is the maximum")


def error_of(outcome: Reply | SpeakerRegistryError, request: Request) -> SpeakerRegistryError | None:
    """Convert the outcome of a request to the error it stands for. Returns None for status 2xx and 304."""
    if isinstance(outcome, SpeakerRegistryError):
        return outcome
    if 200 <= outcome.status < 300 or outcome.status == 304:
        return None
    said = _envelope(outcome.body)
    error = _class_for(outcome.status, said, request)(
        said.message if said else _status_message(outcome),
        param=said.param if said else None,
        retry_after_seconds=retry_after_seconds(outcome.headers),
    )
    error.request_id = (said and said.request_id) or outcome.headers.get("x-request-id")
    if said is None:
        error.is_foreign, error.retryable = True, _is_temporary(outcome.status)
    return error


def _envelope(body: bytes) -> ErrorBody | None:
    """Return the error of the registry in a body, or None if there is none, as in the page of a proxy."""
    try:
        said = ErrorEnvelope.model_validate_json(body).error
    except ValidationError:
        return None
    # A TTS server at a wrong address answers in the same format, with the status in place of the code.
    return said if said.reason or isinstance(said.code, str) else None


def no_registry(reason: str) -> Unavailable:
    """Return the error for an answer whose content the registry would not give, whatever its status is."""
    error = Unavailable(f"{reason}: is there a speaker registry at this address?")
    error.is_foreign, error.retryable = True, False
    return error


def _class_for(status: int, said: ErrorBody | None, request: Request) -> type[SpeakerRegistryError]:
    """Return the error class of an answer.

    An answer that is not the registry's says nothing about voices and API keys, whatever its status is: the
    registry cannot be reached. Only its maximum size of a body concerns that request alone.
    """
    if said is None:
        has_body = request.method in {"POST", "PUT", "PATCH"}
        return PayloadTooLarge if status == 413 and has_body else Unavailable
    return BY_CODE.get(said.reason or str(said.code)) or nearest_class(status)


def nearest_class(status: int) -> type[SpeakerRegistryError]:
    """Return the error class for a status whose error code is unknown because the server is newer."""
    exact = {
        401: InvalidApiKey,
        403: PermissionDenied,
        404: NotFound,
        409: Conflict,
        410: NotFound,
        412: PreconditionFailed,
        413: PayloadTooLarge,
        415: UnsupportedAudio,
        500: SpeakerRegistryError,
    }
    if status in {408, 429} or not 400 <= status < 600:
        return Unavailable
    return exact.get(status) or (InvalidRequest if status < 500 else Unavailable)


def _status_message(reply: Reply) -> str:
    """Describe an answer without an error of the registry. The page of a proxy is not shown, only its
    status.
    """
    if 300 <= reply.status < 400:
        return (
            f"the registry's address answers with a redirect ({reply.status}); give the address it leads to"
        )
    if reply.status == 407:
        return "a proxy asks for credentials (407); give them in its address: http://user:password@host:port"
    message = f"the registry answered with status {reply.status} and no error of its own"
    if reply.status == 413 or _is_temporary(reply.status):
        return message
    return f"{message}; check its address and the proxies in between"
