"""Tests of requests that wait while their API key changes: how they share reads of the key, how long they
wait for one that cannot be read, and when they end and change nothing. Store and Redis are in memory. All
else is real.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.concurrency import run_in_threadpool

from services.registry_api.access import authentication
from services.registry_api.access.authentication import Access
from services.registry_api.access.key_first import KeyFirst
from services.registry_api.keys.api_keys import ApiKey, Token
from services.registry_api.keys.make import make
from services.registry_api.keys.revoke import revoke
from services.registry_api.keys.rotate import rotate
from services.registry_api.protocol.callers import Caller
from services.registry_api.serving.limits import BodyTimeouts, RequestLimits
from services.registry_api.serving.recheck import Check, check_before_commit, set_check
from services.registry_api.serving.shared_reads import SharedReads
from services.registry_api.serving.slots import Slots
from services.shared.bucket.store import Object
from services.shared.configuration.uploads import UploadLimits
from speaker_registry.errors import InvalidApiKey, Unavailable
from tests.memory_records import Process
from tests.memory_registry import World

ADDRESS = "203.0.113.7"


class Store:
    """A store in memory that a test may make slow, and that counts the reads of keys."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads = 0
        self.after_read: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, key: str) -> Object:
        found: Object = self._store.read(key)
        if key.startswith("_keys/"):
            self.reads += 1
            self.after_read()
        return found


class Registry:
    """A process that answers requests with one key, and another one that changes the key."""

    def __init__(self) -> None:
        self.world = World()
        self._other = Process.settled(self.world)
        self.token, self._key = self._made()
        self.store = Store(self.world.store)
        self._keys = Process(self.world, store=self.store, run_in_background=lambda _: None).keys
        self.access = Access(self._keys, failures_per_minute=3)

    def _made(self) -> tuple[Token, ApiKey]:
        return make(self._other.keys, name="a", namespace="default", scopes=["engine"], created_by="test")

    def rotate(self) -> None:
        rotate(self._other.keys, self._key, grace_seconds=3600, by="test")
        self._tell()

    def revoke(self) -> None:
        revoke(self._other.keys, self.token.id, by="test")
        self._tell()

    def _tell(self) -> None:
        """Tell the process that keys have changed."""
        self.world.pass_time(0.01)
        self._keys.events_missed()
        self.world.pass_time(0.01)

    async def authenticate(self) -> Caller:
        return await self.access.authenticate(str(self.token), ADDRESS)

    async def authenticate_again(self) -> Caller:
        return await self.access.authenticate_again(str(self.token))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(authentication, "_RETRY_PAUSE_SECONDS", 0.01)
    made = Registry()
    clock = made.world.clock

    def later() -> float:
        made.world.pass_time(1e-5)
        return clock.seconds

    monkeypatch.setattr(clock, "since_boot", later)
    return made


@pytest.mark.parametrize("ask", [Registry.authenticate, Registry.authenticate_again])
def test_a_thousand_requests_read_a_key_that_was_rotated_once(registry: Registry, ask: Any):
    """All listeners of a key ask at the moment at which it is rotated."""

    async def all_ask() -> list[Caller]:
        await registry.authenticate()
        registry.rotate()
        registry.store.reads, registry.store.after_read = 0, lambda: time.sleep(0.05)
        return await asyncio.gather(*(ask(registry) for _ in range(1000)))

    callers = asyncio.run(all_ask())
    assert {caller.id for caller in callers} == {registry.token.id}
    assert registry.store.reads == 1


def test_no_request_shares_a_read_that_began_before_it(registry: Registry):
    """The key may have been revoked in between, and the revocation may have been acknowledged."""
    is_read, goes_on = threading.Event(), threading.Event()

    def pause() -> None:
        is_read.set()
        assert goes_on.wait(10)

    async def ask() -> list[Any]:
        registry.store.after_read = pause
        first = asyncio.create_task(registry.authenticate())
        await asyncio.to_thread(is_read.wait, 10)
        registry.revoke()
        second = asyncio.create_task(registry.authenticate())
        await asyncio.sleep(0.05)
        goes_on.set()
        return await asyncio.gather(first, second, return_exceptions=True)

    assert isinstance(asyncio.run(ask())[1], InvalidApiKey)


def test_a_waiting_request_asks_again_for_a_key_that_cannot_be_read(registry: Registry):
    answers = iter([Unavailable("away"), Unavailable("away"), None])

    def answer() -> None:
        if error := next(answers):
            raise error

    registry.store.after_read = answer
    assert asyncio.run(registry.authenticate_again()).id == registry.token.id
    assert registry.store.reads == 3


def test_a_waiting_request_does_not_wait_for_ever_for_its_key(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    """Nobody knows whether the key was revoked meanwhile."""

    def answer() -> None:
        raise Unavailable("away")

    monkeypatch.setattr(authentication, "_RETRIED_SECONDS", 0.1)
    registry.store.after_read = answer
    with pytest.raises(Unavailable):
        asyncio.run(asyncio.wait_for(registry.authenticate_again(), 5))
    assert registry.store.reads > 2


def test_requests_whose_key_was_revoked_end_at_once_and_do_not_limit_their_address(registry: Registry):
    """Any number of them may wait with one key. None guesses keys, because the key was valid before."""

    async def ask(count: int) -> list[Any]:
        waiting = (registry.authenticate_again() for _ in range(count))
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)

    asyncio.run(registry.authenticate())
    registry.revoke()
    assert {type(error) for error in asyncio.run(ask(10))} == {InvalidApiKey}
    with pytest.raises(InvalidApiKey):
        asyncio.run(registry.authenticate())


# -- asking again after a wait and before a change


def test_a_body_that_arrives_in_time_is_not_too_slow_although_its_key_is_read_slowly(registry: Registry):
    """The time for the body may end while the bucket is asked for the key, which no client can help."""
    bodies: list[bytes] = []
    waits = asyncio.Event()

    async def route(_: Any, receive: Any, __: Any) -> None:
        waits.set()
        bodies.append((await receive())["body"])

    async def send_body() -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        limited = RequestLimits(
            route, uploads=UploadLimits(), form_bytes=0, body_timeouts=BodyTimeouts(idle_seconds=0.1)
        )
        headers = [(b"authorization", f"Bearer {registry.token}".encode()), (b"content-length", b"5")]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        request = KeyFirst(limited, access=registry.access)(scope, messages.get, messages.put)
        answered = asyncio.create_task(request)
        await waits.wait()
        await asyncio.sleep(0.02)
        registry.rotate()
        registry.store.after_read = lambda: time.sleep(0.3)
        await messages.put({"type": "http.request", "body": b"12345", "more_body": False})
        await answered

    asyncio.run(asyncio.wait_for(send_body(), 20))
    assert bodies == [b"12345"]
    assert registry.store.reads > 1


class Holder:
    """The holder of a key that is valid until it is revoked."""

    def __init__(self) -> None:
        self.checks = 0
        self.is_revoked = False

    async def check(self) -> None:
        self.checks += 1
        if self.is_revoked:
            raise InvalidApiKey("This API key is revoked.")


async def with_slot(slots: Slots, check: Check) -> None:
    set_check(check)
    async with slots.hold():
        pass


def test_a_request_whose_key_ends_while_it_waits_for_a_slot_gives_the_slot_back():
    caller = Holder()

    async def wait() -> None:
        slots = Slots(1, wait_seconds=5, refusal="Too many.")
        async with slots.hold():
            waiting = asyncio.create_task(with_slot(slots, caller.check))
            await asyncio.sleep(0.05)
            caller.is_revoked = True
        with pytest.raises(InvalidApiKey):
            await waiting
        await asyncio.wait_for(with_slot(slots, Holder().check), 1)

    asyncio.run(wait())
    assert caller.checks == 1


@pytest.mark.parametrize("has_begun_to_commit", [False, True])
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_request_whose_key_ends_while_it_uses_a_slot_ends_unless_it_has_begun_a_change(
    has_begun_to_commit: bool, in_thread: bool
):
    """A slow bucket may answer long after the key was revoked. A change that was made is not denied."""
    caller = Holder()

    def use() -> None:
        if has_begun_to_commit:
            check_before_commit()
        time.sleep(0.02)
        caller.is_revoked = True

    def use_in_thread(slots: Slots) -> None:
        with slots.hold_in_thread():
            use()

    async def ask(slots: Slots) -> None:
        set_check(caller.check)
        if in_thread:
            await run_in_threadpool(use_in_thread, slots)
        else:
            async with slots.hold():
                await run_in_threadpool(use)

    async def ask_twice() -> list[Any]:
        slots = Slots(1, wait_seconds=5, refusal="Too many.")
        ended = await asyncio.gather(ask(slots), return_exceptions=True)
        await asyncio.wait_for(with_slot(slots, Holder().check), 1)
        return ended

    [ended] = asyncio.run(ask_twice())
    assert isinstance(ended, InvalidApiKey) != has_begun_to_commit
    assert caller.checks == 1


def test_a_request_that_does_not_wait_is_not_checked_again():
    """Its key was checked a moment ago."""
    caller = Holder()
    asyncio.run(with_slot(Slots(1, wait_seconds=5, refusal="Too many."), caller.check))
    assert caller.checks == 0


def test_requests_that_share_a_read_are_checked_each_for_itself():
    """The key of the request that began the read may end, and those of the others stay valid."""
    first, second = Holder(), Holder()
    first.is_revoked = True

    async def ask(reads: SharedReads, slots: Slots, caller: Holder) -> str:
        async def read() -> str:
            async with slots.hold():
                return "read"

        set_check(caller.check)
        return await reads.read("what both want", read)

    async def ask_both() -> list[Any]:
        reads, slots = SharedReads(), Slots(1, wait_seconds=5, refusal="Too many.")
        async with slots.hold():
            asked = [asyncio.create_task(ask(reads, slots, caller)) for caller in (first, second)]
            await asyncio.sleep(0.05)
        return await asyncio.gather(*asked, return_exceptions=True)

    refused, answered = asyncio.run(ask_both())
    assert isinstance(refused, InvalidApiKey)
    assert answered == "read"


def test_the_first_change_of_a_request_is_checked():
    """The request may end its own key by that change, and is finished then."""
    caller = Holder()

    def change() -> None:
        check_before_commit()
        caller.is_revoked = True
        check_before_commit()

    async def ask() -> None:
        set_check(caller.check)
        await run_in_threadpool(change)
        set_check(caller.check)
        with pytest.raises(InvalidApiKey):
            await run_in_threadpool(change)

    asyncio.run(ask())
    assert caller.checks == 2
    check_before_commit()  # belongs to no request


def test_a_caller_whose_key_has_ended_makes_no_key(registry: Registry):
    def refuse() -> None:
        raise InvalidApiKey("This API key is revoked.")

    process = Process.settled(registry.world)
    before = set(registry.world.store.objects)
    process.shared.before_commit = refuse
    with pytest.raises(InvalidApiKey):
        make(process.keys, name="a", namespace="default", scopes=["engine"], created_by=registry.token.id)
    assert set(registry.world.store.objects) == before
    assert not process.keys.stored(registry.token.id).made
