"""The event stream as a process follows it, without Redis."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from services.registry_api.serving import event_feed
from services.registry_api.serving.event_feed import EventFeed, Listener, StreamPosition
from services.registry_api.serving.event_stream import Event, EventStream, order_of
from services.registry_api.wire import events as wire
from services.shared.model.clock import Clock


class Stream:
    """Redis' stream of events, as far as reading it begins."""

    def __init__(self, *positions: str) -> None:
        self.positions = positions

    async def xrevrange(self, _: str, *, count: int) -> list[tuple[str, dict[str, str]]]:
        return [(position, {}) for position in reversed(self.positions)][:count]


@pytest.mark.parametrize(
    ("there", "last", "expected"),
    [
        (["1800000000000-0", "1800000000000-7"], None, "1799999400000-0"),
        ([], None, "0-0"),
        (["1800000000000-10"], "1800000000000-9", "1800000000000-9"),
        (["1800000000000-10"], "1800000000001-0", "1800000000000-10"),
        ([], "1800000000000-9", "0-0"),
    ],
    ids=["ten minutes back", "nothing there", "where it was", "a server whose clock is behind", "emptied"],
)
def test_reading_begins_a_while_back_and_goes_on_where_it_was(
    there: list[str], last: str | None, expected: str
):
    """Events that came while no process read are heard all the same."""

    async def resume() -> str:
        view: Any = None
        stream = EventStream("redis://127.0.0.1:1", view, view, process="this one", now=Clock().since_boot)
        stream._redis = Stream(*there)
        return await stream._resume_after(last)

    assert asyncio.run(resume()) == expected


def test_following_ends_though_a_command_loses_the_cancellation(monkeypatch: pytest.MonkeyPatch):
    """The process waits for this task when it stops, and would never end."""
    turns = []

    async def turn() -> bool:
        turns.append(1)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60 if len(turns) == 1 else 0)
        return False

    async def follow_and_cancel() -> None:
        view: Any = None
        stream = EventStream("redis://127.0.0.1:1", view, view, process="this one", now=Clock().since_boot)
        monkeypatch.setattr(stream, "turn", turn)
        monkeypatch.setattr(stream, "_leave", leave)
        following = asyncio.create_task(stream.follow())
        while not turns:
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait_for(following, 60)

    async def leave() -> None:
        turns.append(0)

    asyncio.run(follow_and_cancel())
    assert turns == [1, 0]


def test_an_entry_about_several_speakers_is_an_event_of_each():
    """A rebuild tells of a hundred voices at once, and what is kept of each of them must go."""

    class Read:
        async def xread(self, *_: Any, **__: Any) -> Any:
            entries = [("5-1", {"what": "voice.admitted", "speakers": '["a/wren", "a/owl"]'})]
            return [("events", [*entries, ("5-2", {"what": "voice.deleted", "speaker": "a/wren"})])]

    async def read_on() -> list[tuple[str, str, str]]:
        nothing: Any = None
        stream = EventStream("redis://127.0.0.1:1", nothing, nothing, process="this one", now=lambda: 0.0)
        heard: list[tuple[str, str, str]] = []
        stream.subscribe(lambda event: heard.append((event["id"], event["what"], event["speaker"])))
        redis: Any = Read()
        stream._redis, stream._position = redis, "0-0"
        await stream._read_on()
        assert stream.position == "5-2"
        return heard

    assert asyncio.run(read_on()) == [
        ("5-1", "voice.admitted", "a/wren"),
        ("5-1", "voice.admitted", "a/owl"),
        ("5-2", "voice.deleted", "a/wren"),
    ]


class Entries:
    """Redis' stream of events, which a test may let grow while it is read."""

    def __init__(self, *ids: str) -> None:
        self.ids = list(ids)
        self.stream: Any = None
        self.next_ids: list[str] = []

    async def xrange(self, _: str, first: str, last: str, count: int) -> list[tuple[str, dict[str, str]]]:
        while self.next_ids:
            self.ids.append(self.next_ids.pop(0))
            await self.stream._read_on()
        start, end = order_of(first.lstrip("("))[0] + first.startswith("("), order_of(last)[0]
        found = [one for one in self.ids if start <= order_of(one)[0] <= end]
        return [(one, {"what": "job", "speaker": "a/wren"}) for one in found][:count]

    async def xread(self, streams: Any, **_: Any) -> Any:
        [after] = streams.values()
        return [("events", await self.xrange("", f"({after}", "999-0", 99))]

    async def xrevrange(self, _: str, *, count: int) -> list[tuple[str, dict[str, str]]]:
        return [(one, {}) for one in reversed(self.ids)][:count]


def followed(entries: Entries, position: str) -> tuple[EventStream, EventFeed]:
    """Return a stream of a process that has received the events up to a position, and its feed."""
    nothing: Any = None
    stream = EventStream("redis://127.0.0.1:1", nothing, nothing, process="this one", now=lambda: -1.0)
    redis: Any = entries
    stream._redis, stream.generation, stream._position, entries.stream = redis, "f", position, stream
    return stream, EventFeed(stream)


def ids_of(events: Any) -> list[str]:
    return [event["id"] for event in events]


@pytest.mark.parametrize(
    ("received", "arriving", "read", "told"),
    [("7-0", [], [], ["10-0"]), ("9-0", ["10-0"], ["9-0"], ["10-0"]), ("10-0", [], ["9-0", "10-0"], [])],
    ids=["a process that has just started", "an event that arrives meanwhile", "nothing new"],
)
def test_a_client_that_continues_gets_each_event_once_and_in_order(
    received: str, arriving: list[str], read: list[str], told: list[str]
):
    """A process that has just started passes on the events of the last ten minutes, most of which the client
    has.
    """

    async def continue_after(event_id: str) -> tuple[list[str], list[str]]:
        entries = Entries("6-0", "7-0", "8-0", "9-0", *([] if arriving else ["10-0"]))
        entries.next_ids = list(arriving)
        stream, feed = followed(entries, received)
        with feed.listen(lambda _: True) as listener:
            missed = await feed.catch_up(listener, StreamPosition("f", event_id))
            await stream._read_on()
            assert not listener.has_missed_events
            return ids_of(missed), ids_of(listener.take())

    missed, queued = asyncio.run(continue_after("8-0" if received != "7-0" else "9-0"))
    assert (missed, queued) == (read, told)


@pytest.mark.parametrize("position", [StreamPosition("f", "5-0"), StreamPosition("e", "8-0")])
def test_a_client_whose_events_are_gone_is_told_so(position: StreamPosition):
    async def continue_after() -> Listener:
        _, feed = followed(Entries("6-0", "8-0"), "8-0")
        with feed.listen(lambda _: True) as listener:
            assert await feed.catch_up(listener, position) == []
            return listener

    assert asyncio.run(continue_after()).has_missed_events


def test_a_server_that_has_lost_events_is_noticed():
    """Its next events may have smaller ids than those that listeners have, and must be told all the same."""

    async def go_back() -> Listener:
        entries = Entries("6-0", "8-0")
        stream, feed = followed(entries, "8-0")
        with feed.listen(lambda _: True) as listener:
            await feed.catch_up(listener, StreamPosition("f", "8-0"))
            entries.ids.remove("8-0")
            await stream._begin("f")
            assert listener.has_missed_events
            entries.ids.append("7-0")
            await stream._read_on()
            return listener

    assert ids_of(asyncio.run(go_back()).take()) == ["7-0"]


@contextmanager
def five_listeners(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Callable[[int], Event], list[Listener]]]:
    """Yield a function that makes an event arrive, and five listeners that pause for 0.25 s."""
    monkeypatch.setattr(event_feed, "_PAUSE_SECONDS_EACH", 0.05)
    _, feed = followed(Entries(), "0-0")

    def arrive(number: int) -> Event:
        event = {"what": "job", "speaker": "a/wren", "at": "1", "id": f"{number}-0"}
        feed._on_event(event)
        return event

    with ExitStack() as held:
        yield arrive, [held.enter_context(feed.listen(lambda _: True)) for _ in range(5)]


def test_a_listener_takes_many_events_at_once_where_there_are_many_listeners(monkeypatch: pytest.MonkeyPatch):
    """Hundreds of listeners that were each woken for each event took all the time of the process."""

    async def run() -> list[list[str]]:
        with five_listeners(monkeypatch) as (arrive, [listener, *_]):
            taken = []
            began = time.monotonic()
            for number in range(1, 41):
                arrive(number)
                with suppress(TimeoutError):
                    await listener.wait(0.01)
                    taken.append(ids_of(listener.take()))
            await listener.wait(5)
            taken.append(ids_of(listener.take()))
            assert time.monotonic() - began >= 0.25 * (len(taken) - 1)
            return taken

    first, *later = asyncio.run(run())
    assert first == ["1-0"], "the first event after a silence is told at once"
    assert [one for taken in later for one in taken] == [f"{number}-0" for number in range(2, 41)]


def test_a_pause_delays_no_more_events_than_fit_and_no_end(monkeypatch: pytest.MonkeyPatch):
    """A burst of events is complete although no listener takes them in the pause, and a stream whose key has
    ended does not wait for the pause.
    """
    monkeypatch.setattr(event_feed, "MAX_BEHIND", 6)

    async def run() -> None:
        with five_listeners(monkeypatch) as (arrive, [listener, other, *_]):
            arrive(1)
            listener.take()
            for number in range(2, 6):
                arrive(number)
            await listener.wait(0.1)
            assert ids_of(listener.take()) == ["2-0", "3-0", "4-0", "5-0"]
            other.take()
            arrive(6)
            with pytest.raises(TimeoutError):
                await other.wait(0.01)
            other.wake()
            await other.wait(0.1)

    asyncio.run(run())


def test_an_event_is_rendered_once_for_all_listeners(monkeypatch: pytest.MonkeyPatch):
    rendered: list[Event] = []
    render = wire.render

    def counted(event: Event, position: object) -> bytes:
        rendered.append(event)
        return render(event, position)

    monkeypatch.setattr(event_feed, "_MAX_FRAMES", 2)
    frames = event_feed.Frames(counted)
    with five_listeners(monkeypatch) as (arrive, listeners):
        sent = [arrive(number) for number in (1, 2, 2)]
        for listener in listeners:
            for event in listener.take()[:2]:
                assert frames.render(event, event["id"]) == render(event, event["id"])
        assert rendered == sent[:2]
        assert frames.render(sent[2], "f-2-0") == render(sent[2], "f-2-0"), "another event with the same id"
    assert len(frames._held) == 2
