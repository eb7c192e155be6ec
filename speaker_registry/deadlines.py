"""Deadlines of the blocking client: a call ends in time even if its answer arrives byte by byte.

httpx restarts its timeouts with each read and write, so a head that trickles in could hold a call for ever.
asyncio has timeouts for whole calls, so the client for asyncio does not need this.
"""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

from speaker_registry.errors import Unavailable
from speaker_registry.pools import pools_of

_WRITE_BYTES = 64 * 1024
"""Size of the pieces in which a request is written. The deadline is checked after each piece."""


class Deadlines(httpcore.NetworkBackend):
    """The network as httpcore sees it, where each thread can set a deadline for all its reads and writes.

    Args:
        clock: returns the time that deadlines are measured by, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._network = httpcore.SyncBackend()
        self._set = threading.local()

    def apply_to(self, http: httpx.Client) -> None:
        """Make a client use this network, also through proxies. Only httpx's own transports are changed."""
        for pool in pools_of(http):
            pool._network_backend = self

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Make reads and writes of this thread inside the context raise `Unavailable` after a deadline."""
        self._set.deadline = deadline
        try:
            yield
        finally:
            del self._set.deadline

    def seconds_left(self, timeout: float | None) -> float | None:
        """Return the timeout of one read or write. Raises `Unavailable` if the deadline has passed."""
        deadline: float | None = getattr(self._set, "deadline", None)
        if deadline is None:
            return timeout
        left = deadline - self._clock()
        if left <= 0:
            raise Unavailable("the server did not finish its answer in time")
        return left if timeout is None else min(timeout, left)

    def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(self, self._network.connect_tcp(*arguments, **options))

    def connect_unix_socket(self, *arguments: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(self, self._network.connect_unix_socket(*arguments, **options))

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    """A connection whose reads and writes end at the deadline of their thread."""

    def __init__(self, deadlines: Deadlines, stream: httpcore.NetworkStream) -> None:
        self._deadlines = deadlines
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadlines.seconds_left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITE_BYTES):
            piece = buffer[start : start + _WRITE_BYTES]
            self._stream.write(piece, self._deadlines.seconds_left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        timeout = self._deadlines.seconds_left(timeout)
        return _Stream(self._deadlines, self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
