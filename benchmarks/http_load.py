"""Sends a stream of HTTP requests at a rate that does not depend on the answers, over many kept connections,
from one event loop. It uses no client library, because the same two cores run the server and this client.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class Answer:
    """The answer to one request. `seconds` counts from the time at which the request was due, even if no
    connection was free then.
    """

    kind: str
    status: int
    """HTTP status, or 0 if the connection broke."""
    seconds: float
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Results are grouped by `kind`. With `keep`, the body of its answer is kept."""

    kind: str
    head: str
    """Method and path of the request."""
    headers: str = ""
    body: bytes = b""
    keep: bool = False

    def encoded(self, host: str) -> bytes:
        length = f"Content-Length: {len(self.body)}\r\n" if self.body else ""
        return f"{self.head} HTTP/1.1\r\nHost: {host}\r\n{self.headers}{length}\r\n".encode() + self.body


@dataclass
class Load:
    """The answers to one stream of requests."""

    seconds: float
    answers: list[Answer] = field(default_factory=list)
    unsent: int = 0
    """Number of requests for which no connection became free until the end."""

    def of(self, *statuses: int) -> list[Answer]:
        return [answer for answer in self.answers if answer.status in statuses]

    def rate(self, *statuses: int) -> float:
        return len(self.of(*statuses)) / self.seconds


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._buffer = b""
        self._done: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, data: bytes) -> "asyncio.Future[tuple[int, bytes]]":
        assert self.transport is not None
        self._buffer = b""
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self._done

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found or self._done is None or self._done.done():
            return
        status = int(head[9:12])
        lower = head.lower()
        at = lower.find(b"\r\ncontent-length:")
        length = int(lower[at + 17 : at + 40].split(b"\r\n")[0]) if at >= 0 and status != 304 else 0
        if len(rest) >= length:
            self._done.set_result((status, rest[:length]))

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        if self._done is not None and not self._done.done():
            self._done.set_result((0, b""))


async def _connect(host: str, port: int) -> _Connection:
    _, connection = await asyncio.get_running_loop().create_connection(_Connection, host, port)
    return connection


async def stream(
    urls: Sequence[str],
    next_ask: Callable[[random.Random], Ask],
    *,
    per_second: float,
    seconds: float,
    connections: int = 256,
) -> Load:
    """Send requests at even intervals, each to the next address. If `per_second` is infinite, each connection
    sends its next request as soon as it has an answer.
    """
    load, lucky = Load(seconds), random.Random(7)
    places = [(urlsplit(url).hostname or "", urlsplit(url).port or 80) for url in urls]
    kept = [await _connect(*places[number % len(places)]) for number in range(connections)]
    began = time.perf_counter()
    sent = 0

    def due() -> float:
        return began + sent / per_second if per_second != float("inf") else time.perf_counter()

    async def caller(number: int) -> None:
        nonlocal sent
        host, port = places[number % len(places)]
        connection = kept[number]
        while True:
            at = due()
            if at - began >= seconds:
                break
            sent += 1
            if (pause := at - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            elif time.perf_counter() - began > seconds + 2:
                load.unsent += 1
                continue
            if connection.transport is None or connection.transport.is_closing():
                try:
                    connection = await _connect(host, port)
                except OSError:
                    load.answers.append(Answer("connect", 0, time.perf_counter() - at))
                    continue
            ask = next_ask(lucky)
            status, body = await connection.ask(ask.encoded(f"{host}:{port}"))
            load.answers.append(Answer(ask.kind, status, time.perf_counter() - at, body if ask.keep else b""))
        if connection.transport is not None:
            connection.transport.close()

    await asyncio.gather(*(caller(number) for number in range(connections)))
    load.seconds = max(seconds, time.perf_counter() - began)
    return load
