"""A list of all voices, sent while it is made: what it costs those who read it slowly, and others."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from services.registry_api.serving.fair_queue import FairQueue
from services.registry_api.wire.paging import VoicePage
from services.registry_api.wire.whole_list import WholeList
from speaker_registry.errors import Unavailable


class Pages:
    """`many` pages of two voices each."""

    def __init__(self, many: int) -> None:
        self.many = many
        self.found = 0

    def find(self, _: str) -> VoicePage:
        self.found += 1
        return VoicePage([], f"v{self.found:05d}b", self.found < self.many)

    def entries(self, _: VoicePage) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        for key in (f"v{self.found:05d}a", f"v{self.found:05d}b"):
            yield key, {"name": key, "text": "x" * 1000}, {"id": key}

    def listed(self) -> WholeList:
        return WholeList(self.find(""), self.find, self.entries, FairQueue(1), "")


def run(pages: Pages, **messages: Any) -> list[dict[str, Any]]:
    """Return what is sent of a list. After `hang_up_after` messages the reader is gone."""
    sent: list[dict[str, Any]] = []

    async def main() -> None:
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) == messages.get("hang_up_after"):
                gone.set()
                await asyncio.sleep(3600)  # nothing is read any more

        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await asyncio.wait_for(pages.listed()(scope, receive, send), 30)

    asyncio.run(main())
    return sent


def body(sent: list[dict[str, Any]]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent)


def test_it_is_one_document_with_all_voices_in_each_list():
    listed = json.loads(body(run(Pages(150))))
    names = [f"v{number:05d}{letter}" for number in range(1, 151) for letter in "ab"]
    assert [one["name"] for one in listed["uploaded_voices"]] == names
    assert [one["id"] for one in listed["data"]] == names
    assert listed["voices"] == ["default", *names]
    assert (listed["object"], listed["has_more"], listed["last_id"]) == ("list", False, "v00150b")


@pytest.mark.slow
def test_no_message_holds_more_than_a_page_or_a_piece_of_the_rest():
    """20,000 voices were 8 MB in one piece, which took 4.2 s to make, and 170 MB of memory meanwhile. Now a
    list holds one page, and up to 128 KiB of each of its two other parts.
    """
    sizes = [len(message.get("body", b"")) for message in run(Pages(3000))]
    assert max(sizes) <= 64 * 1024
    assert sum(sizes) > 6_000_000


def test_who_hangs_up_has_no_more_pages_made():
    pages = Pages(1000)
    run(pages, hang_up_after=10)
    assert pages.found <= 10


def test_who_does_not_read_has_no_page_made_and_keeps_nobody_from_it():
    """The turn to make a page is not held while one is sent."""

    async def main() -> None:
        pages, lists = Pages(1000), FairQueue(1)
        slow = WholeList(pages.find(""), pages.find, pages.entries, lists, "")._made()
        for _ in range(5):
            await anext(slow)
        made = pages.found
        others = Pages(20)
        quick = WholeList(others.find(""), others.find, others.entries, lists, "")._made()
        parts = [part async for part in quick]
        assert len(json.loads(b"".join(parts))["data"]) == 40
        assert pages.found == made
        await slow.aclose()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_list_that_cannot_be_finished_is_cut_off():
    """Half a list that looks whole would have others delete what it lacks."""
    pages = Pages(10)

    def away(_: str) -> VoicePage:
        return VoicePage([], "v", True, of_bucket=True)

    async def main() -> None:
        listed = WholeList(pages.find(""), away, pages.entries, FairQueue(1), "")
        parts: list[bytes] = []

        async def read() -> None:
            async for part in listed._made():
                parts.append(part)

        with pytest.raises(Unavailable):
            await read()
        assert parts
        assert b"has_more" not in b"".join(parts)

    asyncio.run(main())
