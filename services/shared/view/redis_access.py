"""Connects to Redis with clients that fail fast, and turns their failures into errors for our callers.

This module knows nothing of the data that we keep there.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import redis
import structlog
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
)
from redis.retry import Retry
from redis.utils import str_if_bytes

from services.shared.configuration.values import without_credentials
from services.shared.telemetry.logs import LogThrottle
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

RIGHTS = "~sr:* ~rq:* &rq:* +@all -@admin -@dangerous +info"
"""The rights that our user needs, in the syntax of Redis' ACL. They cover our keys and RQ's. They include no
command that changes settings, writes files or loads modules, so with a stolen password one can only destroy
data that can be rebuilt from the bucket.
"""
OPERATOR_RIGHTS = "+flushdb +bgrewriteaof"
"""The rights of the user `operator` in compose and the dev overlay: the commands that the documentation asks
operators to run. Our processes do not know its password.
"""

ANSWER_SECONDS = 5.0
"""One command may take this long while the server answers other commands."""
SUSPECT_SECONDS = 0.3
"""The server is probed when a command has had no answer for this long."""
PROBE_SECONDS = 1.0
"""The server must answer a probe within this time. On a machine whose processors are all busy, a healthy
server took more than 0.3 s several times a minute. A shorter limit would treat it as silent, and uploads
would be answered with 503.
"""
CONNECT_SECONDS = 1.0
OPEN_SECONDS = 1.0
"""The pause between two probes of a server that does not answer."""
RECHECK_SECONDS = 10.0
"""A connection that is older than this is replaced before it is used again. So a server that begins to evict
keys while connections are open is noticed within this time.
"""
_throttle = LogThrottle(60.0)
"""Every request may fail for the same reason, so it is logged only once a minute."""
_SLICE_SECONDS = 0.05
"""A waiting command notices within this time that the breaker has opened."""


class SilentServerError(redis.TimeoutError):
    """The breaker is open: the server does not answer."""


class EvictingServerError(redis.RedisError):
    """The server evicts keys when its memory is full, so no view in it can be trusted."""

    def __init__(self, policy: str) -> None:
        super().__init__(
            f"Redis evicts keys when its memory is full: its maxmemory-policy is '{policy}'. "
            "Accepted: noeviction."
        )


class WritesUnsafeError(redis.ResponseError):
    """The server refuses writes that it could not save (MISCONF) or replicate (NOREPLICAS)."""


class ServerBusyError(redis.ResponseError):
    """The server is blocked by a script that does not end (BUSY)."""


class CommandMissingError(redis.ResponseError):
    """The server does not have a command, or its configuration disables it."""


class TooManyConnectionsError(redis.ConnectionError):
    """The server has as many connections as it accepts (maxclients)."""


_POLICY = re.compile(r"maxmemory_policy:(\S+)")
_OUR_CLASSES = {
    "MISCONF": WritesUnsafeError,
    "NOREPLICAS": WritesUnsafeError,
    "BUSY": ServerBusyError,
    "NOCOMMAND": CommandMissingError,
}
"""Maps error codes for which redis-py has no class to our classes. NOCOMMAND is our own, see `_CODES`."""
_TOO_MANY_CONNECTIONS = {"max number of clients reached": TooManyConnectionsError}
"""The same for a text of the code ERR."""
_REFUSED_AT_EXEC = "EXECABORT Transaction discarded because of: "
"""A server puts this before an error that holds only since the transaction's commands were queued."""
_CODES = {
    # A server whose user must not use MULTI refuses that command, and then has no transaction for EXEC.
    re.compile("ERR (ACL failure in script|EXEC without MULTI)"): "NOPERM",
    re.compile("ERR .*unknown (redis )?(sub)?command", re.IGNORECASE): "NOCOMMAND",
}
"""Maps the beginnings of errors that have no code of their own to the codes that they get here."""
_QUOTED_ARGUMENTS = ", with args"
"""A server that does not know a command quotes its arguments after this, also the password of HELLO."""

_MESSAGES: dict[type[redis.RedisError], str] = {
    NoScriptError: "Redis was just restarted.",  # replaced between loading a script and calling it
    OutOfMemoryError: "Redis has reached its memory limit and takes no writes now.",
    ReadOnlyError: "Redis is a read-only replica now and takes no writes.",
    WritesUnsafeError: "Redis cannot save or replicate writes now and takes none.",
    ServerBusyError: "Redis is busy.",
    ClusterDownError: "Redis cannot be read now.",
    NoPermissionError: "The user in SPEAKER_REDIS_URL lacks a right that the registry needs in Redis.",
    CommandMissingError: (
        "The Redis in SPEAKER_REDIS_URL does not have, or has disabled, a command that the registry needs."
    ),
    AskError: "Redis runs in cluster mode, in which the registry cannot use it.",
    ClusterCrossSlotError: "Redis runs in cluster mode, in which the registry cannot use it.",
    redis.ResponseError: "Redis refuses commands of the registry. The registry's log says why.",
    redis.AuthenticationError: "Redis refuses the user or password in SPEAKER_REDIS_URL, or requires one.",
    TooManyConnectionsError: "Redis refuses the connection: it has as many as it accepts (maxclients).",
    redis.ConnectionError: "Redis cannot be reached now.",
    redis.TimeoutError: "Redis cannot be reached now.",
}
"""Maps classes of errors to the messages that callers get. The nearest parent class counts."""


def connect(
    url: str, *, connect_hook: Callable[[Any], None] | None = None, decode_responses: bool = True
) -> redis.Redis:
    """Return a client that fails instead of hanging, so that its callers can answer 503 with a time to retry.

    A refused connection fails at once. All clients of one server share a `Breaker`, so a silent server delays
    running commands by a little more than a second, and later commands not at all.
    """
    client = redis.Redis.from_url(
        url,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        # Only lost connections are retried, because retrying a silent server would take as long again.
        retry=Retry(
            ExponentialWithJitterBackoff(cap=0.2, base=0.02), 3, supported_errors=(redis.ConnectionError,)
        ),
        redis_connect_func=connect_hook,
        decode_responses=decode_responses,
    )
    pool = client.connection_pool
    pool.connection_class = _guarded(pool.connection_class, _breaker_of(url), _address_of(url))
    return client


class Breaker:
    """A circuit breaker: decides for all clients of one server whether it answers.

    A command that has waited for `SUSPECT_SECONDS` calls `suspect`. A thread then probes the server over a
    connection of its own. If the probe is not answered, the breaker opens: commands under way give up, and
    new ones fail at once, until a probe is answered. No other thread waits for a probe.

    Args:
        probe: returns whether the server answered.
        address: the server's address, for the log.
    """

    def __init__(self, probe: Callable[[], bool], address: str = "") -> None:
        self._probe = probe
        self._address = address
        self._lock = threading.Lock()
        self._probing = False
        self._open = False

    def check(self) -> None:
        """Raise `SilentServerError` while the breaker is open."""
        if self._open:
            raise SilentServerError("the server does not answer")

    def suspect(self) -> None:
        """Start a probe of the server, unless one is running or the system refuses a thread for it."""
        with self._lock:
            if self._probing:
                return
            self._probing = True
        try:
            threading.Thread(target=self._watch, name="redis-probe", daemon=True).start()
        except RuntimeError:  # no thread can be started now
            with self._lock:
                self._probing = False

    def _watch(self) -> None:
        while not self._probe():
            if not self._open:
                log.warning("redis.silent", setting="SPEAKER_REDIS_URL", address=self._address)
            self._open = True
            time.sleep(OPEN_SECONDS)
        if self._open:
            log.info("redis.answers", address=self._address)
        with self._lock:
            self._open = self._probing = False


_breakers: WeakValueDictionary[str, Breaker] = WeakValueDictionary()
"""Maps each URL to its breaker, for as long as a client of the URL exists."""
_breakers_lock = threading.Lock()


def _breaker_of(url: str) -> Breaker:
    with _breakers_lock:
        breaker = _breakers.get(url)
        if breaker is None:
            breaker = _breakers[url] = Breaker(partial(_answers, url), _address_of(url))
        return breaker


def _answers(url: str) -> bool:
    """Return whether the server answers within `PROBE_SECONDS`.

    An error or a refused connection is an answer, too.
    """
    try:
        with redis.Redis.from_url(
            url,
            socket_timeout=PROBE_SECONDS,
            socket_connect_timeout=PROBE_SECONDS,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            client.ping()
    except redis.TimeoutError:
        return False
    except redis.RedisError:
        return True
    return True


_Connection: Any = AbstractConnection  # half of its methods have no types


class _Guarded(_Connection):  # type: ignore[misc]
    """A connection that uses the breaker.

    It asks the breaker before it waits for the server, starts a probe after a long wait, and logs the reason
    if it cannot be opened.
    """

    breaker: Breaker
    address: str
    connected_at = 0.0

    def set_parser(self, parser_class: type[Any]) -> None:
        super().set_parser(_with_our_classes(parser_class))

    def connect_check_health(self, *arguments: Any, **options: Any) -> None:
        self.breaker.check()
        try:
            super().connect_check_health(*arguments, **options)
        except SilentServerError:  # the breaker has logged it
            raise
        except (redis.ConnectionError, redis.TimeoutError) as error:
            _log_unreachable(self.address, error)
            raise

    def connect(self) -> None:
        # The pool calls this before it lends a connection, so no transaction is under way.
        if self._sock is not None and time.monotonic() - self.connected_at > RECHECK_SECONDS:
            self.disconnect()
        super().connect()

    def on_connect_check_health(self, check_health: bool = True) -> None:
        super().on_connect_check_health(check_health)
        self.connected_at = time.monotonic()
        self._check_eviction()

    def _check_eviction(self) -> None:
        self.send_command("INFO", "memory")
        policy = _POLICY.search(str_if_bytes(self.read_response()))
        if policy is not None and policy[1] != "noeviction":
            self.disconnect()
            if _throttle.due(("redis.evicts", self.address, policy[1])):
                log.error("redis.evicts", setting="SPEAKER_REDIS_URL", address=self.address, policy=policy[1])
            raise EvictingServerError(policy[1])

    def _connect(self) -> Any:
        try:
            return super()._connect()
        except (redis.TimeoutError, TimeoutError):  # redis-py translates it further up
            self.breaker.suspect()
            raise

    def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        self.breaker.check()
        super().send_packed_command(*arguments, **options)

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        self._await_answer()
        return super().read_response(*arguments, **options)

    def _await_answer(self) -> None:
        if self._sock is None or self.socket_timeout is None:
            return
        try:
            self._await_bytes()
        except redis.RedisError:
            self.disconnect()  # a late answer must not be read as that of the next command
            raise

    def _await_bytes(self) -> None:
        began = time.monotonic()
        # Connections for blocking commands have a longer timeout, because they wait that long on purpose.
        suspicious_at = began + SUSPECT_SECONDS + max(0.0, self.socket_timeout - ANSWER_SECONDS)
        wait = min(SUSPECT_SECONDS, self.socket_timeout)
        while not self.can_read(timeout=wait):
            self.breaker.check()
            now = time.monotonic()
            if now - began >= self.socket_timeout:
                raise redis.TimeoutError("the server has not answered this command in time")
            if now >= suspicious_at:
                self.breaker.suspect()
                suspicious_at = now + SUSPECT_SECONDS
            wait = _SLICE_SECONDS


def _guarded(kind: type[Any], breaker: Breaker, address: str) -> type[Any]:
    """Return this class of connections, guarded by the breaker."""
    return type("Guarded", (_Guarded, kind), {"breaker": breaker, "address": address})


def _with_our_classes(parser_class: type[Any]) -> type[Any]:
    if issubclass(parser_class, _OurErrors):
        return parser_class
    theirs = parser_class.EXCEPTION_CLASSES
    classes = {**theirs, **_OUR_CLASSES, "ERR": {**theirs["ERR"], **_TOO_MANY_CONNECTIONS}}
    return type(parser_class.__name__, (_OurErrors, parser_class), {"EXCEPTION_CLASSES": classes})


class _OurErrors:
    """A mixin for parsers which know `_OUR_CLASSES`. The class of a refused transaction is that of the
    refusal.
    """

    @classmethod
    def parse_error(cls, response: str) -> Any:
        """Return the exception for an error of the server. Its text quotes no arguments of commands."""
        parsers: Any = super()  # redis-py's parser, which has no types
        response = response.removeprefix(_REFUSED_AT_EXEC).partition(_QUOTED_ARGUMENTS)[0]
        for text, code in _CODES.items():
            if text.match(response):
                response = f"{code} {response}"
        return parsers.parse_error(response)


@contextmanager
def unavailable_without_redis() -> Iterator[None]:
    """Convert errors of the server and of connections to `Unavailable`."""
    try:
        yield
    except redis.ResponseError as error:
        _log_refusal(error)
        raise Unavailable(_message_for(error), retry_after_seconds=5) from error
    except EvictingServerError as error:
        raise Unavailable(str(error), retry_after_seconds=60) from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise Unavailable(_message_for(error), retry_after_seconds=2) from error


def _message_for(error: redis.RedisError) -> str:
    return next(_MESSAGES[cls] for cls in type(error).__mro__ if cls in _MESSAGES)


def _log_refusal(error: redis.ResponseError) -> None:
    if _throttle.due(("redis.refused", type(error))):
        log.warning("redis.refused", setting="SPEAKER_REDIS_URL", cause=_cause(error))


def _log_unreachable(address: str, error: redis.RedisError) -> None:
    cause = _cause(error)
    if _throttle.due(("redis.unreachable", address, cause)):
        log.warning("redis.unreachable", setting="SPEAKER_REDIS_URL", address=address, cause=cause)


def _cause(error: redis.RedisError) -> str:
    return f"{type(error).__name__}: {without_command(error)}"


def without_command(error: Exception) -> str:
    """Return the text of an error without the command that redis-py quotes if it was in a pipeline."""
    return str(error).rpartition(" of pipeline caused error: ")[2]


def _address_of(url: str) -> str:
    """Return the URL without user, password and options."""
    return without_credentials(url.partition("?")[0])
