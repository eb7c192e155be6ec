"""Tests of what one caller may hold of a process, and of how slowly a body may arrive."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from services.registry_api.protocol.callers import Caller
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


def test_a_body_has_time_in_proportion_to_what_has_come():
    """A byte now and then kept a body going for ten minutes."""
    pace = BodyTimeouts(idle_seconds=30, start_seconds=30, bytes_per_second=1000)
    assert pace.seconds_for(0) == 30
    assert pace.seconds_for(100) == pytest.approx(30.1)
    assert pace.seconds_for(60_000) == 90
