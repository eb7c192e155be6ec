"""Tests of whose request is next, and of how many requests one tenant may have at the same time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.registry_api.serving.fair_queue import ACTIVE_SECONDS, FairQueue
from speaker_registry.errors import RateLimited, Unavailable


class Requests:
    """Requests to one queue, on one loop whose clock stands still. Each is served for `seconds` and ends in
    the next turn of the loop.
    """

    def __init__(self, limit: int = 1) -> None:
        self.queue = FairQueue(limit)
        self.served: list[str] = []

    def start(self, tenants: str, seconds: float = 1.0) -> "list[asyncio.Task[None]]":
        """One for each letter."""
        return [asyncio.create_task(self._request(tenant, seconds)) for tenant in tenants]

    async def served_after(self, first: str, seconds: float, *asking: tuple[str, float]) -> str:
        """The order in which those are served that ask while one of the tenant `first` has the only place,
        which it leaves after so many seconds. `asking`: as the arguments of `start`.
        """
        await self.queue.acquire(first)
        tasks = [task for tenants, each in asking for task in self.start(tenants, each)]
        await asyncio.sleep(0)
        self.queue.release(first, seconds)
        await asyncio.gather(*tasks)
        return "".join(self.served)

    async def _request(self, tenant: str, seconds: float) -> None:
        await self.queue.acquire(tenant)
        self.served.append(tenant)
        await asyncio.sleep(0)
        self.queue.release(tenant, seconds)


async def turns(count: int) -> None:
    """Let so many turns of the event loop pass."""
    for _ in range(count):
        await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def with_time_standing_still() -> None:
        loop = asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(loop, "time", lambda: 0.0)
            await test()

    asyncio.run(with_time_standing_still())


def test_tenants_take_turns_however_much_one_of_them_asks():
    """They waited in one line, so whoever asked most was served most."""

    async def test() -> None:
        assert await Requests().served_after("a", 1.0, ("aaaaaabbc", 1.0)) == "bcabaaaaa"

    run(test)


def test_a_tenant_whose_requests_take_long_has_fewer_of_them_served():
    """The share is of the time, not of the number."""

    async def test() -> None:
        served = await Requests().served_after("x", 0.0, ("aaa", 4.0), ("b" * 12, 1.0))
        assert served == "abbbbabbbbabbbb"

    run(test)


def test_a_tenant_that_comes_back_has_saved_nothing_up():
    """A tenant could otherwise keep all others out for as long as it was away."""

    async def test() -> None:
        requests = Requests()
        await asyncio.gather(*requests.start("a" * 100))
        requests.served.clear()
        assert await requests.served_after("a", 1.0, ("aaabbb", 1.0)) == "bababa"

    run(test)


def test_while_others_ask_nobody_has_more_than_a_share(monkeypatch: pytest.MonkeyPatch):
    """A request that has begun is not interrupted, so one tenant's long requests would keep the others from
    all places. A tenant that is alone has all of them.
    """

    async def test() -> None:
        now = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        queue = FairQueue(4)
        alone = [asyncio.create_task(queue.acquire("a")) for _ in range(5)]
        await asyncio.sleep(0)
        assert queue.running == 4
        for _ in alone:
            queue.release("a", 1.0)
            await asyncio.sleep(0)
        await queue.acquire("b")
        queue.release("b", 1.0)
        beside = [asyncio.create_task(queue.acquire("a")) for _ in range(5)]
        await turns(5)
        assert queue.running == 2
        assert await asyncio.create_task(queue.acquire("b"))
        assert queue.running == 3
        queue.release("b", 1.0)
        now += ACTIVE_SECONDS + 1
        beside.append(asyncio.create_task(queue.acquire("a")))
        await asyncio.sleep(0)
        assert queue.running == 4, "b asks no more"
        for _ in beside:
            queue.release("a", 1.0)
            await asyncio.sleep(0)
        assert queue.running == 0

    asyncio.run(test())


@pytest.mark.parametrize(("beside", "most"), [(False, 6), (True, 1)], ids=["alone", "beside another"])
def test_while_others_ask_a_tenant_has_one_request_granted_in_each_turn_of_the_loop(beside: bool, most: int):
    """Refusals end in the turn in which they begin, so they never fill the queue. All of them were given in
    one turn, and a request of another tenant, which takes several turns, waited for all of them in each.
    """

    async def test() -> None:
        queue = FairQueue(8)
        if beside:
            await queue.acquire("other")
        ended = 0

        async def refused() -> None:
            nonlocal ended
            await queue.acquire("a")
            queue.release("a", 0.001)
            ended += 1

        tasks = [asyncio.create_task(refused()) for _ in range(6)]
        in_each_turn = []
        while ended < len(tasks):
            before = ended
            await asyncio.sleep(0)
            in_each_turn.append(ended - before)
        assert max(in_each_turn) == most

    run(test)


def test_a_slot_with_a_time_limit_is_not_waited_for_any_longer():
    """What runs without a slot has none to release."""

    async def test() -> None:
        queue = FairQueue(1)
        await queue.acquire("a")
        async with queue.slot("b", 0.01):
            assert queue.running == 1
        assert queue.running == 1

    asyncio.run(test())


def test_only_a_tenant_that_has_its_share_is_told_that_it_asks_too_much():
    """A caller that others keep waiting can do nothing about it."""

    async def test() -> None:
        queue = FairQueue(2)
        assert isinstance(queue.refusal("a", "All is taken."), Unavailable)
        await queue.acquire("a")
        await queue.acquire("a")
        assert isinstance(queue.refusal("a", "All is taken."), Unavailable), "it is alone"
        waiting = asyncio.create_task(queue.acquire("b"))
        await asyncio.sleep(0)
        assert isinstance(queue.refusal("a", "All is taken."), RateLimited)
        assert "its share is 1 while other namespaces" in queue.refusal("a", "All is taken.").message
        assert queue.refusal("b", "All is taken.").message == "All is taken."
        assert isinstance(queue.refusal("b", "All is taken."), Unavailable)
        queue.release("a", 1.0)
        assert await waiting

    run(test)


def test_tenants_that_ask_no_more_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    """There is no end of names; but what a tenant still holds is counted."""

    async def test() -> None:
        now = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        queue = FairQueue(4)
        await queue.acquire("holds")
        for number in range(1000):
            now += 0.1
            await queue.acquire(f"tenant-{number}")
            queue.release(f"tenant-{number}", 0.01)
        assert len(queue._tenants) <= 10 * ACTIVE_SECONDS + 2
        queue.release("holds", 1.0)
        assert queue.running == 0

    asyncio.run(test())


@pytest.mark.parametrize("given", [False, True], ids=["waiting", "just admitted"])
def test_a_request_that_is_given_up_keeps_nobody_waiting(given: bool):
    async def test() -> None:
        queue = FairQueue(1)
        await queue.acquire("a")
        gone, next_one = (asyncio.create_task(queue.acquire(tenant)) for tenant in "bc")
        await asyncio.sleep(0)
        if given:
            queue.release("a", 1.0)
        gone.cancel()
        await asyncio.sleep(0)
        if not given:
            queue.release("a", 1.0)
        assert await next_one
        queue.release("c", 1.0)
        assert queue.running == 0

    run(test)


def test_resumed_requests_of_one_tenant_take_nothing_from_the_share_of_others():
    """They exceeded the limit together, and nobody else was admitted until they had ended."""

    async def test() -> None:
        queue = FairQueue(4)
        for _ in range(10):
            queue.resume("greedy")
        modest = [asyncio.create_task(queue.acquire("modest")) for _ in range(3)]
        more = asyncio.create_task(queue.acquire("greedy"))
        await turns(5)
        assert [task.done() for task in modest] == [True, True, False], "two of four are its share"
        assert not more.done()
        for _ in range(10):
            queue.release("greedy", 1.0)
        queue.release("modest", 1.0)
        assert await modest[2]
        assert await more

    run(test)
