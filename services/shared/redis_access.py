"""Reaching Redis: clients that fail fast, and what their failures mean to our callers. Knows nothing we keep
there.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from speaker_registry.errors import Unavailable

RIGHTS = "~sr:* ~rq:* &rq:* +@all -@admin -@dangerous +info"
"""What our user needs, as Redis' ACL writes it: our keys and RQ's, and no command by which whoever has its
password could do more than lose what the bucket tells anyway: change settings, write files, load modules.
"""

ANSWER_SECONDS = 5.0
"""A server that syncs its log to a busy disk may be silent for two."""
CONNECT_SECONDS = 2.0
SILENT_SECONDS = 1.0
"""After that long it is asked again."""


def connect(
    url: str,
    *,
    connect_hook: Callable[[Any], None] | None = None,
    decode_responses: bool = True,
    silence: "Silence | None" = None,
) -> redis.Redis:
    """A client that fails rather than hang: callers answer 503 and are asked to come back.

    At once where nobody listens, after `ANSWER_SECONDS` where somebody does and says nothing; from then on at
    once as well, but for one call now and then that finds out whether it speaks again. Clients that share a
    `silence` find out together.
    """
    client = redis.Redis.from_url(
        url,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        # Lost connections only. Who is silent is not asked again: that would take as long once more.
        retry=Retry(
            ExponentialWithJitterBackoff(cap=0.2, base=0.02), 3, supported_errors=(redis.ConnectionError,)
        ),
        redis_connect_func=connect_hook,
        decode_responses=decode_responses,
    )
    pool = client.connection_pool
    pool.connection_class = _listening(pool.connection_class, silence or Silence())
    return client


class Silence:
    """Whether a server was silent just now; for all threads."""

    def __init__(self) -> None:
        self._until: float | None = None
        """Nobody but the prober asks before; None: the server speaks."""
        self._prober: int | None = None
        self._heard_at = 0.0

    def check(self) -> None:
        """Before a call. Raises redis's TimeoutError where it would only wait."""
        until, me = self._until, threading.get_ident()
        if until is None or self._prober == me:
            return
        if time.monotonic() < until:
            raise redis.TimeoutError("the server was silent just now")
        self._until, self._prober = time.monotonic() + ANSWER_SECONDS, me

    def begin(self, asked_at: float) -> None:
        """Who asked then has had no answer. If another has, one command is slow or one connection dead."""
        if self._heard_at < asked_at:
            self._until, self._prober = time.monotonic() + SILENT_SECONDS, None

    def end(self) -> None:
        self._until = self._prober = None
        self._heard_at = time.monotonic()


def _listening(kind: type[Any], silence: Silence) -> type[Any]:
    """Connections that notice when the server falls silent."""

    class Listening(kind):  # type: ignore[misc]
        asked_at = 0.0

        def _connect(self) -> Any:
            silence.check()
            self.asked_at = time.monotonic()
            try:
                return super()._connect()
            except (redis.TimeoutError, TimeoutError):  # redis-py's own only further up
                silence.begin(self.asked_at)
                raise
            except OSError:  # who refuses is not silent
                silence.end()
                raise

        def send_packed_command(self, *arguments: Any, **options: Any) -> None:
            silence.check()
            self.asked_at = time.monotonic()
            super().send_packed_command(*arguments, **options)

        def read_response(self, *arguments: Any, **options: Any) -> Any:
            try:
                response = super().read_response(*arguments, **options)
            except redis.TimeoutError:
                silence.begin(self.asked_at)
                raise
            except (redis.ResponseError, redis.ConnectionError):  # an answer, or an end
                silence.end()
                raise
            silence.end()
            return response

    return Listening


@contextmanager
def unavailable_without_redis() -> Iterator[None]:
    """Turns trouble with the server into `Unavailable`; what it answered to our own scripts passes."""
    try:
        yield
    except redis.exceptions.NoScriptError as error:  # replaced between loading a script and calling it
        raise Unavailable("The index was just restarted.", retry_after_seconds=2) from error
    except redis.ResponseError as error:
        if str(error).startswith(("MISCONF", "OOM", "READONLY", "LOADING", "CLUSTERDOWN")):
            raise Unavailable("The index does not accept writes now.", retry_after_seconds=5) from error
        raise
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise Unavailable("The index cannot be reached now.", retry_after_seconds=2) from error
