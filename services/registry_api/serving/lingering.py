"""A transport that lets clients read the last answer before the connection closes.

It does not close the connection while a client is still sending, because the TCP reset that follows could
overtake the answer. It also does not wait for ever for a client that reads nothing.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_UNSENT_BYTES = 128 * 1024
"""The system takes more data only while it has fewer bytes than this that it has not sent yet."""


class LingeringTransport:
    """A transport whose `close` gives a client that is still sending time to read the answer first.

    See RFC 9112, 9.6. The protocol must drop data that arrives meanwhile.
    """

    def __init__(
        self, transport: asyncio.Transport, still_sending: Callable[[], bool], max_seconds: float
    ) -> None:
        self._transport = transport
        _keep_little_in_the_system(transport)
        self._still_sending = still_sending
        self._max_seconds = max_seconds
        self._end: asyncio.TimerHandle | None = None
        self._read_check: asyncio.TimerHandle | None = None
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def lingers(self) -> bool:
        return self._end is not None

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Close when the client disconnects, after at most `max_seconds`, or at once if it is not sending."""
        if self.is_closing():
            return
        self.expect_reading()
        if not self._still_sending():
            self._transport.close()
            return
        self._transport.write_eof()
        self._transport.resume_reading()
        self._end = asyncio.get_running_loop().call_later(self._max_seconds, self._transport.abort)

    def get_write_buffer_size(self) -> int:  # `__getattr__` would take longer than the call itself
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def write_both(self, head: bytes, body: bytes | memoryview) -> None:
        """Write a head and a body without copying the body behind the head."""
        self._written += len(head) + len(body)
        self._transport.writelines((head, body))

    def expect_reading(self) -> None:
        """Abort the connection if the client reads nothing for `max_seconds` while data waits to be read."""
        if self._read_check is None:
            self._check_reading_later()

    def _check_reading_later(self) -> None:
        left = self._transport.get_write_buffer_size()
        loop, sent = asyncio.get_running_loop(), self._written - left
        self._read_check = loop.call_later(self._max_seconds, self._check_reading, sent) if left else None

    def _check_reading(self, sent: int) -> None:
        if self._written - self._transport.get_write_buffer_size() > sent:
            self._check_reading_later()
        else:
            self._transport.abort()

    def close_at_once(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._transport.close()


def _keep_little_in_the_system(transport: asyncio.Transport) -> None:
    """Bound what the system takes before it sends it. Otherwise it takes megabytes at once and then nothing
    for a long time, and a client that reads slowly could not be told from one that reads nothing.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Linux and macOS
        with suppress(OSError):  # macOS refuses this for a connection that was reset already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
