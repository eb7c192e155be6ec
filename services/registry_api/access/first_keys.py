"""Fetches the OpenID provider's keys for a process that has none, such as one that has just started. This
module knows neither tokens nor callers.
"""

import asyncio

from starlette.concurrency import run_in_threadpool

from services.registry_api.access.tokens import JwtVerifier
from services.registry_api.serving.admission import pause_request

_WAIT_SECONDS = 5.0
"""A request waits this long for the first keys. A fetch may take longer, and goes on for later requests."""


class FirstKeys:
    """The fetch of the first keys in one process. Must only be used from its event loop.

    Requests that need the keys at the same moment share one fetch. They occupy no thread and do not count as
    active while they wait, because any client can send a token.
    """

    def __init__(self) -> None:
        self._fetch: asyncio.Task[None] | None = None

    async def wait(self, jwts: JwtVerifier) -> None:
        """Wait for the keys if there are none. Returns without them if the provider does not answer in
        time.
        """
        if jwts.has_keys:
            return
        if self._fetch is None or self._fetch.done():
            self._fetch = asyncio.create_task(run_in_threadpool(jwts.fetch_if_due))
        with pause_request():
            await asyncio.wait([self._fetch], timeout=_WAIT_SECONDS)
