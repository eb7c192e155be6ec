"""Notices that a client hangs up while its request waits. This module is pure ASGI."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.types import Receive

from speaker_registry.errors import SpeakerRegistryError


async def _until_hang_up(receive: Receive) -> None:
    """Return when the client hangs up. What is left of its body is discarded."""
    with suppress(SpeakerRegistryError):  # of a body that a client announces and does not send
        while (await receive())["type"] != "http.disconnect":
            pass


@asynccontextmanager
async def noticing(receive: Receive) -> AsyncIterator["asyncio.Task[None]"]:
    """Yield a task that is done when the client has hung up. It ends with the context at the latest."""
    hanging_up = asyncio.create_task(_until_hang_up(receive))
    try:
        yield hanging_up
    finally:
        hanging_up.cancel()
        await asyncio.wait({hanging_up})
