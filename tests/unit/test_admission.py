"""Tests of how many requests are active at once, and of which are refused."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.registry_api.protocol.signals import route_of
from services.registry_api.serving import admission
from services.registry_api.serving.admission import LoadShedding, pause_request
from services.registry_api.serving.slots import Slots

App = Callable[..., Awaitable[None]]


class Requests:
    """Requests to one application under `LoadShedding`, on one loop. `go_on` lets active requests answer."""

    def __init__(self, app: App | None = None, *, max_active: int = 2) -> None:
        self.go_on = asyncio.Event()
        self.routes: list[str] = []
        """The routes by which the answered requests are counted."""
        self.shedding = LoadShedding(
            app or self._answer_when_told, max_active=max_active, tenant_of=lambda scope: scope["tenant"]
        )

    async def _answer_when_told(self, _: Any, __: Any, send: Any) -> None:
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def start(
        self, path: str = "/v1/voices", receive: Any = None, tenant: str = "a"
    ) -> "asyncio.Task[list[dict[str, Any]]]":
        return asyncio.create_task(self._request(path, receive, tenant))

    async def _request(self, path: str, receive: Any, tenant: str) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
        scope["tenant"] = tenant
        await self.shedding(scope, receive, send)
        self.routes.append(route_of(scope))
        return sent


async def beginning(*tasks: "asyncio.Task[Any]") -> None:
    """Everything that can go on without waiting has."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))  # type: ignore[arg-type]


def test_what_comes_on_top_is_refused_after_a_while():
    """The refusal says when to come back, and active requests are finished."""

    async def test() -> None:
        requests = Requests()
        first, second = requests.start(), requests.start()
        await beginning()
        head, body = await requests.start()
        assert head["status"] == 503
        assert (b"retry-after", b"1") in head["headers"]
        assert "busy with 2 requests" in json.loads(body["body"])["error"]["message"]
        requests.go_on.set()
        assert [(await one)[0]["status"] for one in (first, second)] == [200, 200]
        assert requests.shedding.admission.queue.running == 0
        assert (await requests.start())[0]["status"] == 200
        assert requests.routes == ["busy", "none", "none", "none"], "an alert counts those that were too many"

    run(test)


class Clock:
    """An event loop's, which goes on when it is told to, and what is to be done by then is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds = 0.0
        self._later: list[tuple[float, Callable[[], object]]] = []
        monkeypatch.setattr(loop, "time", lambda: self._seconds)
        monkeypatch.setattr(loop, "call_at", self._call_at)

    def _call_at(self, when: float, callback: Callable[..., object], *arguments: Any) -> asyncio.Handle:
        handle = asyncio.Handle(callback, arguments, asyncio.get_running_loop())
        self._later.append((when, lambda: handle.cancelled() or callback(*arguments)))
        return handle

    async def go(self, seconds: float, late: float = 0.0) -> None:
        """Advance the time. Everything that is due meanwhile is done `late`."""
        await beginning()
        end = self._seconds + seconds
        while due := [item for item in self._later if item[0] <= end]:
            first = min(due, key=lambda item: item[0])
            self._later.remove(first)
            self._seconds = max(self._seconds, first[0]) + late
            first[1]()
            await beginning()
        self._seconds = max(self._seconds, end)
        await beginning()


def run_by_clock(test: Callable[[Clock, Requests], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def by_clock() -> None:
        with monkeypatch.context() as patches:
            await test(Clock(asyncio.get_running_loop(), patches), Requests(max_active=4))

    asyncio.run(by_clock())


async def overload(
    clock: Clock, requests: Requests, seconds: float, late: float = 0.0, tenant: str = "a"
) -> None:
    """More than can be served, for so long."""
    for _ in range(round(seconds / 0.1)):
        requests.start(tenant=tenant)
        await clock.go(0.1, late)


def test_where_many_have_waited_long_for_longer_than_a_burst_one_is_refused_soon(
    monkeypatch: pytest.MonkeyPatch,
):
    """A request waits again as long as a burst may take after the overload has ended."""

    async def test(clock: Clock, requests: Requests) -> None:
        await overload(clock, requests, 0.9)
        in_the_burst = requests.start()
        await clock.go(0.1)
        assert not in_the_burst.done()
        await overload(clock, requests, 0.9)
        refused = requests.start()
        await clock.go(0.01)
        assert refused.done()
        assert refused.result()[0]["status"] == 503
        requests.go_on.set()
        await clock.go(0.6)
        requests.go_on.clear()
        await overload(clock, requests, 0.4)
        after = requests.start()
        await clock.go(0.1)
        assert not after.done()
        requests.go_on.set()
        assert (await after)[0]["status"] == 200

    run_by_clock(test, monkeypatch)


def test_waiting_for_a_moment_is_no_overload(monkeypatch: pytest.MonkeyPatch):
    """It does not matter how long that goes on, while requests soon become active."""

    async def test(clock: Clock, requests: Requests) -> None:
        for _ in range(100):
            tasks = [requests.start() for _ in range(6)]
            await clock.go(0.02)
            tasks += [requests.start() for _ in range(6)]
            await clock.go(0.02)
            requests.go_on.set()
            assert {(await task)[0]["status"] for task in tasks} == {200}
            requests.go_on.clear()

    run_by_clock(test, monkeypatch)


def test_where_refusals_are_late_fewer_requests_are_active(monkeypatch: pytest.MonkeyPatch):
    """At least two stay active, and all are admitted again when everything is in time."""

    async def test(clock: Clock, requests: Requests) -> None:
        admission_control = requests.shedding.admission
        await overload(clock, requests, 5, late=0.005)
        assert admission_control.queue.limit == 4
        await overload(clock, requests, 10, late=0.02)
        assert admission_control.queue.limit == 2
        requests.go_on.set()
        for _ in range(400):
            await requests.start()
        assert admission_control.queue.limit == 4
        assert admission_control.queue.running == 0

    run_by_clock(test, monkeypatch)


def test_an_overload_of_one_tenant_is_refused_and_requests_of_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
):
    """They all waited in one line, and where that was long for long, everybody was refused."""

    async def test(clock: Clock, requests: Requests) -> None:
        modest = requests.start(tenant="modest")
        await overload(clock, requests, 5, tenant="greedy")
        assert requests.shedding.admission.queue.running == 3, "greedy has its share, two of four"
        over_share = requests.start(tenant="greedy")
        others = [requests.start(tenant="modest") for _ in range(2)]
        await clock.go(0.5)
        assert not any(other.done() for other in (modest, *others)), "two are active, and one may wait"
        head, body = over_share.result()
        assert head["status"] == 429
        assert (b"retry-after", b"1") in head["headers"]
        assert "its share is 2 while other namespaces" in json.loads(body["body"])["error"]["message"]
        requests.go_on.set()
        assert {(await other)[0]["status"] for other in (modest, *others)} == {200}
        await clock.go(1)
        assert requests.shedding.admission.queue.running == 0

    run_by_clock(test, monkeypatch)


def test_while_others_ask_refusals_of_one_tenant_are_spread(monkeypatch: pytest.MonkeyPatch):
    """Callers that ask again at once, whatever they are told, kept the event loop busy with refusals."""

    async def test(clock: Clock, requests: Requests) -> None:
        requests.start(tenant="modest")
        await overload(clock, requests, 5, tenant="greedy")
        again = [requests.start(tenant="greedy") for _ in range(200)]
        for seconds, refused in ((0.1, 10), (0.4, 50)):
            await clock.go(seconds)
            assert abs(sum(task.done() for task in again) - refused) <= 2
        await clock.go(0.6)
        assert all(task.done() for task in again), "none waits for longer than in a burst"

    run_by_clock(test, monkeypatch)


@pytest.fixture
def long_wait_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is."""
    monkeypatch.setattr(admission, "WAIT_LIMIT_SECONDS", 60)


@pytest.mark.usefixtures("long_wait_limit")
def test_a_burst_that_is_over_soon_is_served():
    """The requests are served in the order in which they came, and never more at a time than permitted."""

    async def test() -> None:
        active: list[int] = []

        async def app(scope: Any, _: Any, send: Any) -> None:
            active.append(requests.shedding.admission.queue.running)
            await asyncio.sleep(0.001)
            served.append(scope["path"])
            await send({"type": "http.response.start", "status": 200, "headers": []})

        served: list[str] = []
        requests = Requests(app)
        tasks = [requests.start(f"/v1/{number}") for number in range(10)]
        assert {(await task)[0]["status"] for task in tasks} == {200}
        assert served == [f"/v1/{number}" for number in range(10)]
        assert max(active) == 2
        assert requests.shedding.admission.queue.running == 0

    run(test)


@pytest.mark.usefixtures("long_wait_limit")
@pytest.mark.parametrize("given", [False, True], ids=["waiting", "just given one"])
def test_a_request_that_is_given_up_lets_the_next_one_run(given: bool):
    """The client that was waiting may be gone."""

    async def test() -> None:
        requests = Requests()
        working = [requests.start() for _ in range(2)]
        await beginning()
        gone, next_one = requests.start(), requests.start()
        await beginning()
        if given:
            requests.shedding.admission.queue.release("a", 0.0)
        gone.cancel()
        await beginning()
        requests.go_on.set()
        assert (await next_one)[0]["status"] == 200
        await asyncio.gather(*working)
        assert requests.shedding.admission.queue.running == (-1 if given else 0)

    run(test)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_who_watches_is_always_answered(path: str):
    """A replica that is busy must not be taken for dead."""

    async def test() -> None:
        requests = Requests()
        tasks = [requests.start() for _ in range(2)]
        await beginning()
        watching = requests.start(path)
        await beginning()
        requests.go_on.set()
        assert (await watching)[0]["status"] == 200
        await asyncio.gather(*tasks)

    run(test)


def test_a_waiting_request_is_not_active():
    """A thousand long polls are no load."""

    async def test() -> None:
        changed = asyncio.Event()

        async def app(_: Any, __: Any, send: Any) -> None:
            with pause_request():
                await changed.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        requests = Requests(app)
        polls = [requests.start() for _ in range(100)]
        await beginning()
        assert requests.shedding.admission.queue.running == 0
        changed.set()
        assert {(await poll)[0]["status"] for poll in polls} == {200}
        assert requests.shedding.admission.queue.running == 0

    run(test)


def test_a_request_with_a_slow_body_is_not_active():
    """A few callers on bad lines would otherwise keep all others out."""

    async def test() -> None:
        pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def app(_: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        requests = Requests(app)
        uploads = [requests.start(receive=pieces.get) for _ in range(10)]
        await beginning()
        assert requests.shedding.admission.queue.running == 0
        for _ in uploads:
            pieces.put_nowait({"type": "http.request"})
        assert {(await upload)[0]["status"] for upload in uploads} == {200}
        assert requests.shedding.admission.queue.running == 0

    run(test)


@pytest.mark.usefixtures("long_wait_limit")
def test_requests_whose_bodies_are_there_are_never_more_than_the_limit():
    """Each let the next one in while it read its body, so all were active at once."""

    async def test() -> None:
        active: list[int] = []

        async def app(_: Any, receive: Any, send: Any) -> None:
            await receive()
            active.append(requests.shedding.admission.queue.running)
            await asyncio.sleep(0.001)
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def body() -> dict[str, Any]:
            return {"type": "http.request"}

        requests = Requests(app)
        tasks = [requests.start(receive=body) for _ in range(10)]
        assert {(await task)[0]["status"] for task in tasks} == {200}
        assert max(active) == 2
        assert requests.shedding.admission.queue.running == 0

    run(test)


def test_a_request_whose_answer_is_read_slowly_is_not_active():
    """The work is done."""

    async def test() -> None:
        read = asyncio.Event()

        async def app(_: Any, __: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await read.wait()

        requests = Requests(app)
        tasks = [requests.start() for _ in range(5)]
        await beginning()
        assert requests.shedding.admission.queue.running == 0
        read.set()
        await asyncio.gather(*tasks)
        assert requests.shedding.admission.queue.running == 0

    run(test)


def test_who_waits_for_a_dependency_waits_for_requests_of_its_own_tenant():
    """All waited for the bucket in one line, and where one tenant filled it the others were refused."""

    async def test() -> None:
        slots = Slots(2, wait_seconds=60, refusal="Too many.")
        served: list[str] = []
        go_on = asyncio.Event()

        async def app(scope: Any, _: Any, send: Any) -> None:
            async with slots.hold():
                await go_on.wait()
                served.append(scope["tenant"])
            await send({"type": "http.response.start", "status": 200, "headers": []})

        requests = Requests(app)
        tasks = [requests.start(tenant="greedy") for _ in range(10)]
        await beginning()
        tasks += [requests.start(tenant=tenant) for tenant in ("modest", "third")]
        await beginning()
        go_on.set()
        await asyncio.gather(*tasks)
        assert set(served[2:4]) == {"modest", "third"}

    run(test)


def test_a_request_that_fails_is_no_longer_active():
    """Also while it waits for something."""

    async def test() -> None:
        async def app(_: Any, __: Any, ___: Any) -> None:
            with pause_request():
                raise RuntimeError

        requests = Requests(app)
        for _ in range(5):
            with pytest.raises(RuntimeError):
                await requests.start()
        assert requests.shedding.admission.queue.running == 0

    run(test)


def test_outside_a_request_nobody_is_counted():
    with pause_request():
        pass
