"""Tests of what one caller may hold of a process, and of how slowly a body may arrive."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from services.registry_api.access.authentication import Access
from services.registry_api.protocol.callers import Caller
from services.registry_api.serving import arriving_bodies
from services.registry_api.serving.arriving_bodies import ArrivingBody
from services.registry_api.serving.concurrency_limits import ConcurrencyLimits
from services.registry_api.serving.limits import BodyTimeouts, RequestLimits
from services.shared.configuration.uploads import UploadLimits
from speaker_registry.errors import RateLimited

ALICE = Caller("alice", "default", frozenset())
BOB = Caller("bob", "other", frozenset())
CAROL = Caller("carol", "default", frozenset())


def test_a_caller_holds_no_more_than_its_share_and_others_have_theirs():
    limits = ConcurrencyLimits("waiting requests", of_key=2)
    with limits.hold(ALICE, "a"), limits.hold(ALICE, "a"):
        with (
            pytest.raises(RateLimited, match="API key has reached its limit of 2 waiting requests"),
            limits.hold(ALICE, "a"),
        ):
            raise AssertionError
        with limits.hold(BOB, "a"):
            pass
    with limits.hold(ALICE, "a"):
        pass
    assert not limits._held


def test_a_key_that_followed_another_has_no_share_of_its_own():
    limits = ConcurrencyLimits("uploads", of_key=1)
    rotated = Caller("newer", "default", frozenset(), limits_id="alice")
    with limits.hold(ALICE, "a"), pytest.raises(RateLimited), limits.hold(rotated, "a"):
        raise AssertionError


def test_many_keys_of_one_namespace_leave_room_for_others():
    """A tenant that may make keys had as many limits as it liked."""
    limits = ConcurrencyLimits("waiting requests", of_key=2, of_namespace=3)
    keys = [Caller(f"key-{number}", "a", frozenset()) for number in range(4)]
    with ExitStack() as held:
        for one in keys[:3]:
            held.enter_context(limits.hold(one, "a"))
        with (
            pytest.raises(RateLimited, match="namespace has reached its limit of 3 waiting requests"),
            limits.hold(keys[3], "a"),
        ):
            raise AssertionError
        with limits.hold(BOB, "b"):
            pass
    assert not limits._held


def test_an_address_holds_no_more_than_its_share():
    """A client that sends no key, as one that signs in, has no other name."""
    limits = ConcurrencyLimits("arriving requests", of_namespace=2, of_address=1)
    with (
        limits.hold_for_address("192.0.2.1"),
        limits.hold_for_address("192.0.2.2"),
        limits.hold(ALICE, "192.0.2.1"),
        pytest.raises(RateLimited, match="This address has reached its limit of 1 arriving requests"),
        limits.hold_for_address("192.0.2.1"),
    ):
        raise AssertionError
    assert not limits._held


def test_all_addresses_together_leave_room_for_requests_with_a_key():
    """A client with a few addresses could occupy all connections with forms that never end."""
    arriving = Access(connections=16).arriving_requests
    with ExitStack() as held:
        for number in range(4):
            held.enter_context(arriving.hold_for_address(f"192.0.2.{number // 2}"))
        for address in ("192.0.2.0", "192.0.2.9"):
            with pytest.raises(RateLimited, match="reached its limit of"), arriving.hold_for_address(address):
                raise AssertionError
        with arriving.hold(ALICE, "a"):
            pass
    assert not arriving._held


class Uploads:
    """Requests whose bodies arrive piece by piece, as the test sends them."""

    def __init__(self, **limits: Any) -> None:
        uploads = UploadLimits(max_bytes=100, held_bytes=400)
        self.app = RequestLimits(
            self._route, uploads=uploads, form_bytes=0, body_timeouts=BodyTimeouts(), **limits
        )

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        scope["caller"] = scope["of"]  # as `rules` does, before the body is read
        scope["namespace"] = scope["of"].namespace
        while (await receive()).get("more_body"):
            pass

    def begin(self, caller: Caller) -> "tuple[asyncio.Task[None], asyncio.Queue[dict[str, Any]]]":
        pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {"type": "http", "method": "POST", "path": "/v1/voices", "query_string": b"", "headers": []}
        scope["of"] = caller
        return asyncio.create_task(self.app(scope, pieces.get, _nowhere)), pieces


async def _nowhere(_: Any) -> None:
    pass


def piece(size: int, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * size, "more_body": more}


def test_uploads_that_do_not_end_leave_room_for_those_of_others():
    """One key once took all the room there was, and kept it. Two keys must not do so either."""

    async def run() -> None:
        uploads = Uploads(shared=True)
        held = []
        for _ in range(2):
            task, pieces = uploads.begin(ALICE)
            await pieces.put(piece(99, more=True))
            held.append((task, pieces))
        task, pieces = uploads.begin(CAROL)
        await pieces.put(piece(99, more=True))
        with pytest.raises(
            RateLimited, match="namespace has reached its limit of 200 bytes of arriving uploads"
        ):
            await task
        task, pieces = uploads.begin(BOB)
        await pieces.put(piece(99, more=False))
        await task
        for task, pieces in held:
            await pieces.put(piece(1, more=False))
            await task
        again, pieces = uploads.begin(ALICE)
        await pieces.put(piece(99, more=False))
        await again

    asyncio.run(run())


def test_one_caller_has_so_many_uploads_on_their_way_and_no_more():
    """Each holds a connection, however little of it has come."""

    async def run() -> None:
        uploads = Uploads(arriving=ConcurrencyLimits("arriving uploads", of_key=1))
        first, pieces = uploads.begin(ALICE)
        await pieces.put(piece(1, more=True))
        second, more = uploads.begin(ALICE)
        await more.put(piece(1, more=True))
        with pytest.raises(RateLimited, match="limit of 1 arriving uploads"):
            await second
        await pieces.put(piece(1, more=False))
        await first

    asyncio.run(run())


@pytest.mark.parametrize("pauses", [0.01, 0.1])
def test_a_request_is_counted_from_when_its_body_is_late_until_it_is_complete(
    monkeypatch: pytest.MonkeyPatch, pauses: float
):
    """A body is late as a whole, so that one which trickles is counted as well. A body that comes in time is
    accepted however many others are late.
    """
    monkeypatch.setattr(arriving_bodies, "_BRIEF_SECONDS", 0.05)
    limits = ConcurrencyLimits("arriving requests", of_namespace=1)

    async def receive(pieces: "asyncio.Queue[dict[str, Any]]") -> None:
        with ArrivingBody(pieces.get, limits.hold(ALICE, "a")) as body:
            while (await body()).get("more_body"):
                pass
            assert not limits._held

    async def run() -> None:
        late: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        first = asyncio.create_task(receive(late))
        await asyncio.sleep(0)
        assert not limits._held
        for _ in range(round(0.2 / pauses)):
            await late.put(piece(1, more=True))
            await asyncio.sleep(pauses)
        assert limits._held
        with pytest.raises(RateLimited, match="namespace has reached its limit of 1 arriving requests"):
            await receive(asyncio.Queue())
        in_time: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for more in (True, False):
            await in_time.put(piece(1, more=more))
        with ArrivingBody(in_time.get, limits.hold(ALICE, "a")) as body:
            assert [(await body())["more_body"] for _ in range(2)] == [True, False]
        await late.put(piece(1, more=False))
        await first
        assert not limits._held

    asyncio.run(run())


def test_a_request_that_ends_before_its_body_is_not_counted_any_more(monkeypatch: pytest.MonkeyPatch):
    """A route may refuse a request by the beginning of its body."""
    monkeypatch.setattr(arriving_bodies, "_BRIEF_SECONDS", 0.0)
    limits = ConcurrencyLimits("arriving requests", of_namespace=1)

    async def run() -> None:
        pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        with ArrivingBody(pieces.get, limits.hold(ALICE, "a")) as body:
            reading = asyncio.create_task(body())
            await asyncio.sleep(0.02)
            assert limits._held
            await pieces.put(piece(1, more=True))
            await reading
            assert limits._held
        assert not limits._held

    asyncio.run(run())


def test_a_refused_request_can_still_read_its_body(monkeypatch: pytest.MonkeyPatch):
    """A server may read the rest of a body after its answer, to use the connection again."""
    monkeypatch.setattr(arriving_bodies, "_BRIEF_SECONDS", 0.0)
    limits = ConcurrencyLimits("arriving requests", of_namespace=1)

    async def run() -> None:
        pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        with limits.hold(ALICE, "a"), ArrivingBody(pieces.get, limits.hold(ALICE, "a")) as body:
            with pytest.raises(RateLimited):
                await body()
            reading = asyncio.create_task(body())
            await asyncio.sleep(0.01)
            pieces.put_nowait(piece(3, more=False))
            assert await asyncio.wait_for(reading, 1) == piece(3, more=False)
        assert not limits._held

    asyncio.run(run())


def test_a_body_has_time_in_proportion_to_what_has_come():
    """A byte now and then kept a body going for ten minutes."""
    pace = BodyTimeouts(idle_seconds=30, start_seconds=30, bytes_per_second=1000)
    assert pace.seconds_for(0) == 30
    assert pace.seconds_for(100) == pytest.approx(30.1)
    assert pace.seconds_for(60_000) == 90
