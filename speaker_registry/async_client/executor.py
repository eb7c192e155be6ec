"""Executes the plans of the client for asyncio over HTTP.

It does not know which requests a plan sends.
"""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, Self

import httpx

from speaker_registry.async_client.attempts import Attempts, Trace
from speaker_registry.cache import ArtifactCache
from speaker_registry.connecting import connecting, no_answer
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.exchange import (
    BodyReader,
    Join,
    OnPause,
    Outcome,
    Plan,
    Reply,
    Result,
    RetryPolicy,
    SendRequest,
    Sleep,
    Step,
    Work,
)
from speaker_registry.forks import renew_after_fork
from speaker_registry.listings import Item, Listing
from speaker_registry.pools import close_failed_tunnels, forget_connections
from speaker_registry.session import TRANSPORT_ERRORS, Default, Session, no_cookies


class AsyncPlanExecutor(Session):
    """The part of `AsyncRegistryClient` that all its calls use. `RegistryClient` documents the arguments."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        namespace: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        cache: ArtifactCache | Literal[Default.CACHE] | None = Default.CACHE,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        on_pause: OnPause | None = None,
    ) -> None:
        policy = RetryPolicy(
            timeout_seconds=timeout, retries=retries, clock=clock, on_pause=on_pause or (lambda *_: None)
        )
        super().__init__(url, api_key, namespace, policy, cache)
        self._sleep = sleep
        self._http = connecting(lambda: httpx.AsyncClient(transport=transport, cookies=no_cookies()))
        close_failed_tunnels(self._http)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the first request in this process."""
        self._is_traced = transport is None or isinstance(transport, httpx.AsyncHTTPTransport)
        self._attempts = Attempts(traced=self._is_traced)
        renew_after_fork(self, AsyncPlanExecutor._renew)

    def _renew(self) -> None:
        forget_connections(self._http)
        self._loop, self._attempts = None, Attempts(traced=self._is_traced)

    async def close(self) -> None:
        """Close the connections."""
        await self._attempts.close()
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _pages(self, listing: Listing[Item]) -> AsyncIterator[Item]:
        following: Listing[Item] | None = listing
        while following is not None:
            page = await self._run(self._calls.page(following))
            for item in page.data:
                yield item
            following = following.following(page)

    async def _run(self, plan: Plan[Result]) -> Result:
        outcome: Outcome = None
        try:
            while True:
                try:
                    step = plan.send(outcome)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                outcome = await self._perform(step)
        finally:
            plan.close()  # a canceled plan releases the calls that wait for it

    async def _perform(self, step: Step) -> Outcome:
        if isinstance(step, Sleep):
            await self._sleep(step.seconds)
            return None
        if isinstance(step, Work):
            await asyncio.to_thread(step.function)
            return None
        if isinstance(step, Join):
            await asyncio.wait([asyncio.wrap_future(step.done)], timeout=step.seconds)
            return None
        self._bind_to_loop()
        try:
            send = functools.partial(self._send, step)
            return await self._attempts.answer(send, step.deadline - self._policy.clock())
        except SpeakerRegistryError as error:
            return error
        except (*TRANSPORT_ERRORS, TimeoutError) as error:
            return no_answer(self._http, self.url, error)

    def _bind_to_loop(self) -> None:
        """Bind the client to the running event loop at its first request, because its connections belong to
        that loop. Raises `RuntimeError` if it is bound to another loop, or closed.
        """
        if self._http.is_closed:
            raise self._closed()
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise RuntimeError(
                f"{self!r} has sent requests in another event loop, and is used in one only; make a client "
                "in each event loop"
            )

    async def _send(self, step: SendRequest, trace: Trace) -> Reply:
        arguments = self._arguments(step)
        arguments["timeout"].pool = None  # see `attempts`
        async with self._http.stream(**arguments, extensions={"trace": trace}) as response:
            body = BodyReader(step, response.headers, self._policy.clock)
            async for chunk in response.aiter_bytes():
                body.add(chunk)
            return Reply(response.status_code, dict(response.headers), body.whole())
