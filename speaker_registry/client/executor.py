"""Executes the plans of the blocking client over HTTP.

It does not know which requests a plan sends.
"""

import concurrent.futures
import time
from collections.abc import Callable, Iterator
from typing import Literal, Self

import httpx

from speaker_registry.cache import ArtifactCache
from speaker_registry.connecting import connecting, no_answer
from speaker_registry.deadlines import Deadlines
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
    Sleep,
    Step,
    Work,
)
from speaker_registry.forks import renew_after_fork
from speaker_registry.listings import Item, Listing
from speaker_registry.pools import close_failed_tunnels, forget_connections
from speaker_registry.session import TRANSPORT_ERRORS, Default, Session, no_cookies


class PlanExecutor(Session):
    """The part of `RegistryClient` that all its calls use. That class documents the arguments."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        namespace: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        cache: ArtifactCache | Literal[Default.CACHE] | None = Default.CACHE,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        on_pause: OnPause | None = None,
    ) -> None:
        policy = RetryPolicy(
            timeout_seconds=timeout, retries=retries, clock=clock, on_pause=on_pause or (lambda *_: None)
        )
        super().__init__(url, api_key, namespace, policy, cache)
        self._sleep = sleep
        self._http = connecting(lambda: httpx.Client(transport=transport, cookies=no_cookies()))
        self._deadlines = Deadlines(clock)
        self._deadlines.apply_to(self._http)
        close_failed_tunnels(self._http)
        renew_after_fork(self, lambda client: forget_connections(client._http))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pages(self, listing: Listing[Item]) -> Iterator[Item]:
        following: Listing[Item] | None = listing
        while following is not None:
            page = self._run(self._calls.page(following))
            yield from page.data
            following = following.following(page)

    def _run(self, plan: Plan[Result]) -> Result:
        outcome: Outcome = None
        try:
            while True:
                try:
                    step = plan.send(outcome)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                outcome = self._perform(step)
        finally:
            plan.close()  # an interrupted plan releases the calls that wait for it

    def _perform(self, step: Step) -> Outcome:
        if isinstance(step, Sleep):
            self._sleep(step.seconds)
            return None
        if isinstance(step, Work):
            step.function()
            return None
        if isinstance(step, Join):
            concurrent.futures.wait([step.done], step.seconds)
            return None
        if self._http.is_closed:
            raise self._closed()
        try:
            with (
                self._deadlines.until(step.deadline),
                self._http.stream(**self._arguments(step)) as response,
            ):
                body = BodyReader(step, response.headers, self._policy.clock)
                for chunk in response.iter_bytes():
                    body.add(chunk)
                return Reply(response.status_code, dict(response.headers), body.whole())
        except SpeakerRegistryError as error:
            return error
        except TRANSPORT_ERRORS as error:
            return no_answer(self._http, self.url, error)
