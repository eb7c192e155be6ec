"""One request until it has an answer: what is tried again, after how long, and which error an answer is.

No I/O. A *plan* is a generator: it yields what is to be done (`SendRequest`, `Sleep`), is sent what came of
it, and returns its result. `client` and `async_client` have the loops that carry plans out, so nothing is
written twice. Knows HTTP, but no route and no cache.
"""

import math
import random
import re
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TypeVar

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
)
from speaker_registry.schemas import ErrorBody, ErrorEnvelope

MAX_JSON_BYTES = 10 * 1024**2
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
_READ_SECONDS = 30.0
_CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. The same value may be sent several times."""

    method: str = "GET"
    path: str
    """Percent-encoded, from `/v1` on."""
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    """Of a multipart form."""
    clip: bytes | None = field(default=None, repr=False)
    """The form's `audio_sample`."""
    content: bytes | None = field(default=None, repr=False)
    """A body that is no form."""
    max_bytes: int = MAX_JSON_BYTES
    """An answer that is longer is refused before it is read."""
    wait_seconds: float = 0.0
    """How long the server was asked to hold the answer back: comes on top of every time-out."""
    repeatable: bool = True
    """Whether sending it twice does no more than sending it once. If not, it is sent again only where an
    answer says that nothing was done.
    """


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Do one HTTP exchange; its outcome is a `Reply`, or the error why there is none."""

    request: Request
    deadline: float
    """On the policy's clock. When it passes, the outcome is `Unavailable`."""


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


Step = SendRequest | Sleep
Outcome = Reply | SpeakerRegistryError | None
"""Of a `SendRequest`: a reply or an error. Of a `Sleep`: None."""
Result = TypeVar("Result")
Plan = Generator[Step, Outcome, Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patient a client is."""

    timeout_seconds: float = 60.0
    """Of one call, over all its attempts and pauses."""
    retries: int = 3
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    """From 0 to 1, for the jitter of the pauses."""


def exchange(policy: RetryPolicy, request: Request) -> Plan[Reply]:
    """Send until there is an answer that says something, or patience ends.

    Returns:
        An answer with a status of 2xx, or 304; 404 to a DELETE that was repeated.

    Raises:
        SpeakerRegistryError: what the last answer says; `Unavailable` where there was none.
    """
    deadline = policy.clock() + policy.timeout_seconds + request.wait_seconds
    attempt = 0
    while True:
        outcome = yield SendRequest(request, deadline)
        assert outcome is not None, "a SendRequest has an outcome"
        error = error_of(outcome)
        if isinstance(outcome, Reply) and (
            error is None or _deleted_by_lost_attempt(request, attempt, error)
        ):
            return outcome
        assert error is not None
        seconds = pause_before(attempt, error.retry_after_seconds, policy.chance())
        # Sleeping past the deadline would only delay the news.
        if (
            not worth_retrying(request, outcome)
            or attempt >= policy.retries
            or policy.clock() + seconds >= deadline
        ):
            raise error
        yield Sleep(seconds)
        attempt += 1


def _deleted_by_lost_attempt(request: Request, attempt: int, error: SpeakerRegistryError) -> bool:
    """What a repeated DELETE does not find, an attempt whose answer was lost has deleted."""
    return request.method == "DELETE" and attempt > 0 and isinstance(error, NotFound)


def worth_retrying(request: Request, outcome: Reply | SpeakerRegistryError) -> bool:
    """Most requests of ours may be repeated: an upload carries an idempotency key. One that may not is sent
    again only after 429, which is said before anything is done: a lost answer or a 5xx may hide a success.
    """
    if not request.repeatable:
        return isinstance(outcome, Reply) and outcome.status == 429
    if isinstance(outcome, SpeakerRegistryError):
        return outcome.retryable
    told = outcome.headers.get("x-should-retry", "").lower()
    if told in {"true", "false"}:
        return told == "true"
    return outcome.status in {408, 429} or outcome.status >= 500


def pause_before(attempt: int, retry_after_seconds: float | None, chance: float) -> float:
    """Exponential back-off with full jitter; what the server asked for comes first.

    The jitter stays even then: a fleet that was told the same second must not come back in the same instant.
    """
    ceiling = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(attempt, 10))
    return (retry_after_seconds or 0.0) + chance * ceiling


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """`Retry-After` in seconds or as a date; None where it is missing or makes no sense."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
        return float(value)
    when = _unix_time(value)
    # The server's own clock, where it tells it: ours may be wrong.
    now = _unix_time(headers.get("date", "")) or time.time()
    return None if when is None else max(0.0, when - now)


def _unix_time(text: str) -> float | None:
    try:
        seconds: float = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, IndexError):
        return None
    return seconds


def attempt_timeouts(send: SendRequest, now: float) -> dict[str, float]:
    """Httpx's time-outs, in seconds, for one attempt: never longer than what is left until the deadline."""
    left = max(0.001, send.deadline - now)
    read = min(_READ_SECONDS + send.request.wait_seconds, left)
    return {"connect": min(_CONNECT_SECONDS, left), "pool": left, "write": read, "read": read}


class BodyReader:
    """Collects an answer's bytes and refuses what is too long, too late, cut short or compressed."""

    def __init__(self, send: SendRequest, headers: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._send, self._clock = send, clock
        self._chunks: list[bytes] = []
        self._size = 0
        declared = headers.get("content-length", "")
        self._declared = int(declared) if declared.isascii() and declared.isdigit() else None
        if headers.get("content-encoding", "identity") != "identity":
            # We ask for none: a few bytes could unfold to gigabytes before anybody counts them.
            raise Unavailable("the answer is compressed although that was not asked for")
        self._check_size(self._declared or 0)

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        self._check_size(self._size)
        if self._clock() >= self._send.deadline:
            raise Unavailable("the registry did not finish its answer in time")
        self._chunks.append(chunk)

    def whole(self) -> bytes:
        if self._declared is not None and self._declared != self._size:
            raise Unavailable(f"the answer was cut short after {self._size} of {self._declared} bytes")
        return b"".join(self._chunks)

    def _check_size(self, size: int) -> None:
        most = self._send.request.max_bytes
        if size > most:
            raise PayloadTooLarge(
                f"the registry's answer has over {most} bytes, which is the most that is accepted"
            )


def error_of(outcome: Reply | SpeakerRegistryError) -> SpeakerRegistryError | None:
    """The error that an outcome stands for; None for 2xx and 304."""
    if isinstance(outcome, SpeakerRegistryError):
        return outcome
    if 200 <= outcome.status < 300 or outcome.status == 304:
        return None
    said = _envelope(outcome.body)
    error = _class_for(outcome.status, said)(
        said.message if said else _status_message(outcome),
        param=said.param if said else None,
        retry_after_seconds=retry_after_seconds(outcome.headers),
    )
    error.request_id = (said and said.request_id) or outcome.headers.get("x-request-id")
    return error


def _envelope(body: bytes) -> ErrorBody | None:
    try:
        return ErrorEnvelope.model_validate_json(body).error
    except ValidationError:
        return None  # a proxy's page


def _class_for(status: int, said: ErrorBody | None) -> type[SpeakerRegistryError]:
    if said and (known := BY_CODE.get(said.reason or str(said.code))):
        return known
    return nearest_class(status)


def nearest_class(status: int) -> type[SpeakerRegistryError]:
    """For codes of a newer server, and for answers that something in between gave."""
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
    """The page of a proxy is not for callers, its status is."""
    if 300 <= reply.status < 400:
        return (
            f"the registry's address answers with a redirect ({reply.status}); give the address it leads to"
        )
    return f"the registry answered with status {reply.status} and no error of its own"


def whole_seconds(seconds: float) -> str:
    """As `wait=` takes it."""
    return str(math.ceil(seconds))
