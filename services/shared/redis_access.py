"""Reaching Redis: clients that fail fast, and what their failures mean to our callers. Knows nothing we keep
there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from speaker_registry.errors import Unavailable

ANSWER_SECONDS = 5.0
"""A server that syncs its log to a busy disk may be silent for two."""


def connect(
    url: str, *, connect_hook: Callable[[Any], None] | None = None, decode_responses: bool = True
) -> redis.Redis:
    """A client that fails rather than hang: callers answer 503 and are asked to come back.

    At once where nobody listens, after `ANSWER_SECONDS` where somebody does and says nothing.
    """
    return redis.Redis.from_url(
        url,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=2,
        # Lost connections only. Who is silent is not asked again: that would take as long once more.
        retry=Retry(
            ExponentialWithJitterBackoff(cap=0.2, base=0.02), 3, supported_errors=(redis.ConnectionError,)
        ),
        redis_connect_func=connect_hook,
        decode_responses=decode_responses,
    )


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
