"""The parts of the limits that no request over a socket reaches."""

import asyncio
from typing import Any

from services.registry_api.serving.limits import BodyTimeouts, RequestLimits
from services.shared.configuration.uploads import UploadLimits


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
