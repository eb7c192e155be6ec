"""The parts of the limits that no request over a socket reaches."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import uvloop

from services.registry_api.serving.arriving_bodies import ArrivingBody
from services.registry_api.serving.limits import BodyTimeouts, RequestLimits
from services.shared.configuration.uploads import UploadLimits
from speaker_registry.errors import InvalidRequest


def test_once_the_body_is_there_nobody_has_to_send_anything_in_time():
    """An answer that streams for hours listens for the caller to hang up: that is no slow body."""
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    seen: list[str] = []

    async def app(_: Any, receive: Any, __: Any) -> None:
        seen.extend([(await receive())["type"], (await receive())["type"]])

    async def run() -> None:
        pace = BodyTimeouts(idle_seconds=0.05, start_seconds=0.05)
        limited = RequestLimits(app, uploads=UploadLimits(max_bytes=10), form_bytes=0, body_timeouts=pace)
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
        request = asyncio.create_task(limited(scope, messages.get, messages.put))
        await messages.put({"type": "http.request", "body": b"12345", "more_body": False})
        await asyncio.sleep(0.2)
        await messages.put({"type": "http.disconnect"})
        await request

    asyncio.run(run())
    assert seen == ["http.request", "http.disconnect"]


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(("idle_seconds", "start_seconds"), [(0.1, 60.0), (60.0, 0.1)])
def test_time_in_which_the_process_stands_still_is_not_counted(
    idle_seconds: float, start_seconds: float, make_loop: Callable[[], asyncio.AbstractEventLoop]
):
    """A process that was stopped for long finds the body in the kernel when it goes on. A client that sends
    nothing is given up all the same.
    """
    client, connection = socket.socketpair()
    seen = b""

    async def app(_: Any, receive: Any, __: Any) -> None:
        nonlocal seen
        while True:
            seen += (await receive())["body"]

    async def run() -> None:
        reader, writer = await asyncio.open_connection(sock=connection)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": await reader.read(5), "more_body": True}

        pace = BodyTimeouts(idle_seconds=idle_seconds, start_seconds=start_seconds)
        limited = RequestLimits(app, uploads=UploadLimits(max_bytes=100), form_bytes=0, body_timeouts=pace)
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
        body = ArrivingBody(receive, nullcontext())  # as in the application, where it reads in a task
        request = asyncio.create_task(limited(scope, body, None))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        client.sendall(b"1234567890")
        time.sleep(0.2)  # the event loop stands still, as in a stopped process
        await asyncio.sleep(0.02)
        assert seen == b"1234567890"
        with pytest.raises(InvalidRequest, match="too slowly"):
            await asyncio.wait_for(request, 5)
        writer.close()

    with client, asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())
