"""Long polls without Redis: how many reads they cost, and that no change is missed."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message, Receive

from services.registry_api.serving import long_polls as module
from services.registry_api.serving.long_polls import LongPolls
from speaker_registry.errors import VoiceNotFound

ALICE = "default/alice"
CHANGED = {"speaker": ALICE, "what": "artifact.ready"}


class Voice:
    """A state that is read, and changes when a test changes it."""

    def __init__(self) -> None:
        self.ready = False
        self.gone = False
        self.reads = 0
        self.before: Callable[[], object] = lambda: None

    def read(self) -> bool:
        self.reads += 1
        self.before()
        if self.gone:
            raise VoiceNotFound("Voice 'alice' not found")
        return self.ready


async def stays() -> Message:
    """Receive nothing more: the client waits for its answer."""
    await asyncio.Event().wait()
    raise AssertionError("the client stays")


def run(scenario: Callable[[LongPolls], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(LongPolls()), 30)

    asyncio.run(main())


def wait(
    long_polls: LongPolls,
    voice: Voice,
    question: str = "file",
    seconds: float = 20,
    speaker: str = ALICE,
    receive: Receive = stays,
) -> "asyncio.Task[Any]":
    waiting = long_polls.wait_until(speaker, question, seconds, voice.read, bool, receive)
    return asyncio.create_task(waiting)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_all_requests_that_wait_for_the_same_share_one_read():
    """1,500 requests of one key that each read for themselves left others without an answer. 500 waiting
    requests took 500 reads each time, and now take one.
    """
    voice = Voice()

    async def scenario(long_polls: LongPolls) -> None:
        waiting = [wait(long_polls, voice) for _ in range(500)]
        await until(lambda: voice.reads > 0 and long_polls.waiting == 500)
        voice.ready = True
        long_polls.on_event(CHANGED)
        assert await asyncio.gather(*waiting) == [True] * 500

    run(scenario)
    assert voice.reads <= 5


def test_a_change_during_a_read_is_seen_by_the_next():
    """A read that began before a request came may show the state before."""
    voice = Voice()

    async def scenario(long_polls: LongPolls) -> None:
        first = wait(long_polls, voice)
        await until(lambda: voice.reads == 1)
        voice.ready = True
        second = wait(long_polls, voice)
        assert await asyncio.gather(first, second) == [True, True]

    run(scenario)


def test_reads_for_one_namespace_do_not_wait_for_all_those_of_another():
    """A namespace that waited for hundreds of voices delayed the reads of all other namespaces."""
    go_on = threading.Event()
    hanging = [Voice() for _ in range(20)]
    for voice in hanging:
        voice.before = go_on.wait
    ours = Voice()
    ours.ready = True

    async def scenario(long_polls: LongPolls) -> None:
        theirs = [wait(long_polls, voice, str(number)) for number, voice in enumerate(hanging)]
        await until(lambda: sum(voice.reads for voice in hanging) == 2)
        waiting = wait(long_polls, ours, speaker="other/alice")
        await asyncio.sleep(0)
        await until(lambda: long_polls._reads.waiting("other") == 1)
        for voice in hanging:
            voice.ready = True
        go_on.set()
        assert await waiting
        assert sum(voice.reads for voice in hanging) < 10
        assert await asyncio.gather(*theirs) == [True] * 20

    run(scenario)


def test_a_lost_event_costs_no_more_than_a_second():
    voice = Voice()

    async def scenario(long_polls: LongPolls) -> None:
        waiting = wait(long_polls, voice)
        await until(lambda: voice.reads == 1)
        voice.ready = True
        assert await waiting

    run(scenario)


def test_a_request_whose_client_hangs_up_ends_at_once(monkeypatch: pytest.MonkeyPatch):
    """Its place counts against its key. A server that starts again found all places taken for seconds."""
    monkeypatch.setattr(module, "POLL_SECONDS", 600.0)
    voice, hung_up = Voice(), asyncio.Event()

    async def leaves() -> Message:
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def scenario(long_polls: LongPolls) -> None:
        leaving, staying = wait(long_polls, voice, receive=leaves), wait(long_polls, voice)
        await until(lambda: voice.reads == 1 and not long_polls._polls[ALICE]["file"].due.is_set())
        hung_up.set()
        assert await leaving is False
        assert long_polls.waiting == 1
        voice.ready = True
        long_polls.on_event(CHANGED)
        assert await staying

    run(scenario)


def test_a_request_that_waits_for_something_else_has_reads_of_its_own():
    file, job = Voice(), Voice()

    async def scenario(long_polls: LongPolls) -> None:
        waiting = [wait(long_polls, file), wait(long_polls, job, "job")]
        await until(lambda: file.reads > 0 and job.reads > 0)
        file.ready = True
        long_polls.on_event(CHANGED)
        assert await waiting[0]
        assert long_polls.waiting == 1
        job.ready = True
        long_polls.on_event(CHANGED)
        assert await waiting[1]

    run(scenario)


def test_progress_of_a_job_causes_reads_only_for_requests_that_wait_for_progress():
    """Each extraction has three such events, and a read costs more than the event."""

    async def scenario(long_polls: LongPolls) -> None:
        file = Voice()
        waiting = wait(long_polls, file)
        job = asyncio.create_task(
            long_polls.wait_until(ALICE, "job", 20, lambda: False, bool, stays, wake_on_progress=True)
        )
        await until(lambda: long_polls.waiting == 2)
        polls = long_polls._polls[ALICE]
        await until(lambda: not any(poll.due.is_set() for poll in polls.values()))
        long_polls.on_event({"speaker": ALICE, "what": "job", "state": "processing"})
        assert [question for question, poll in polls.items() if poll.due.is_set()] == ["job"]
        long_polls.on_event({"speaker": ALICE, "what": "job", "state": "canceled"})
        assert polls["file"].due.is_set()
        job.cancel()
        file.ready = True
        assert await waiting

    run(scenario)


def test_what_a_read_raises_reaches_all_requests_that_wait():
    voice = Voice()

    async def scenario(long_polls: LongPolls) -> None:
        waiting = [wait(long_polls, voice) for _ in range(3)]
        await until(lambda: voice.reads > 0)
        voice.gone = True
        long_polls.on_event(CHANGED)
        for one in waiting:
            with pytest.raises(VoiceNotFound):
                await one
        assert long_polls.waiting == 0

    run(scenario)


def test_the_last_read_is_answered_when_the_time_is_up_and_nothing_is_left_behind():
    voice = Voice()

    async def scenario(long_polls: LongPolls) -> None:
        assert await wait(long_polls, voice, seconds=0) is False
        assert await wait(long_polls, voice, seconds=0.01) is False
        assert long_polls.waiting == 0
        assert not long_polls._polls
        await until(lambda: len(asyncio.all_tasks()) <= 2)  # this one, and the one that watches the time

    run(scenario)
