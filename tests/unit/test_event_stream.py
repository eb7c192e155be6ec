"""The event stream as a process follows it, without Redis."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from services.registry_api.serving.event_stream import EventStream


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
        index: Any = None
        stream = EventStream("redis://127.0.0.1:1", index, index, process="this one")
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
        index: Any = None
        stream = EventStream("redis://127.0.0.1:1", index, index, process="this one")
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
