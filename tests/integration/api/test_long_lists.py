"""Tests of lists of more voices than one page: sent in pieces, or searched a piece at a time."""

import re
import threading
from collections.abc import Sequence
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from services.registry_api.pages import situation
from services.registry_api.routes import audio_voices
from services.registry_api.wire import paging
from services.registry_api.wire.paging import cursor_before
from services.shared.model.speaker import SpeakerId
from services.shared.registry import pages
from services.shared.registry.speakers import Speakers
from services.shared.view.away import ViewAway
from services.shared.view.copies import SpeakerView
from speaker_registry import RegistryClient
from tests.integration.api.conftest import Start
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import WIDER, Registry

NAMES = ("a", "b", "c", "default", "e", "ä")


@pytest.fixture
def many(start: Start) -> Registry:
    registry = start()
    for name in NAMES:
        registry.upload(name, clip=None, speaker_embedding=str([0.5] * 1024))
    registry.upload("z", ref_text="Said.")
    return registry


def test_a_list_in_pieces_says_what_the_list_in_one_piece_says(
    many: Registry, monkeypatch: pytest.MonkeyPatch
):
    """A list that is sent in pieces equals the list in one piece. Clients of vLLM-Omni request all voices,
    and read them as one JSON document.
    """
    for path in ("/v1/audio/voices", f"/v1/audio/voices?profile={WIDER}", "/v1/audio/voices?after=b"):
        whole = many.client.get(path)
        with monkeypatch.context() as patches:
            patches.setattr(audio_voices, "PAGE_SIZE", 2)
            patches.setattr(paging, "MAX_EXAMINED", 2)
            pieces = many.client.get(path)
            head = many.client.head(path)
        assert pieces.json() == whole.json()
        assert "etag" in whole.headers
        assert "etag" not in pieces.headers
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("search", ["q=nobody", f"profile={WIDER}&state=failed", "state=processing"])
def test_a_search_looks_at_so_many_voices_however_few_it_finds(
    many: Registry, monkeypatch: pytest.MonkeyPatch, search: str
):
    """A search examines a limited number of voices, however few it finds. With 20,000 voices and limit=1 it
    took 20,000 lookups, two at a time: 2.3 s that all other requests had to wait. Now a page takes fewer than
    200 (`MAX_EXAMINED` and `PAGE_SIZE`), however many voices there are.
    """
    looked_at = []
    read_many = Speakers.read_many

    def look(self: Speakers, ids: Sequence[SpeakerId]) -> Any:
        looked_at.extend(ids)
        return read_many(self, ids)

    monkeypatch.setattr(Speakers, "read_many", look)
    monkeypatch.setattr(paging, "PAGE_SIZE", 2)
    monkeypatch.setattr(paging, "MAX_EXAMINED", 3)
    monkeypatch.setattr(pages, "NAMES_SEARCHED", 2)
    page = many.client.get(f"/v1/voices?limit=1&{search}").json()
    assert (page["data"], page["has_more"]) == ([], True)
    assert len(looked_at) <= 4
    assert page["last_id"] in NAMES


def test_a_search_moves_the_names_of_one_page_once(many: Registry, monkeypatch: pytest.MonkeyPatch):
    """The names are most of what a search costs. When a page stayed empty, as many names were read again for
    nothing, so that a search took 1.7 times as long with 100,000 voices as with 100.
    """
    limits = []
    names = SpeakerView.names

    def read(self: SpeakerView, *arguments: Any, **options: Any) -> list[str]:
        limits.append(options["limit"])
        return names(self, *arguments, **options)

    monkeypatch.setattr(SpeakerView, "names", read)
    monkeypatch.setattr(pages, "NAMES_SEARCHED", 2)
    page = many.client.get("/v1/voices?q=nobody").json()
    assert (page["data"], page["has_more"], page["last_id"]) == ([], True, "b")
    assert limits == [3], "one more tells that there is a next page"


@pytest.mark.parametrize(("counted", "more", "asked"), [(4, True, 4), (7, False, 6)])
def test_the_overview_lists_the_names_once(
    many: Registry, monkeypatch: pytest.MonkeyPatch, counted: int, more: bool, asked: int
):
    """One round trip tells whether the view is complete, one lists the names, and one reads each two voices.
    When the names were listed for each step, 250 voices took 9 round trips, and now 5.
    """
    monkeypatch.setattr(situation, "_STEP", 2)
    monkeypatch.setattr(situation, "MAX_COUNTED", counted)
    reads, read = [], many.opened.generation.read

    def noted(steps: Any) -> Any:
        reads.append(threading.current_thread())
        return read(steps)

    monkeypatch.setattr(many.opened.generation, "read", noted)
    found = many.app.state.parts.situation.voices("default")
    assert (found.examined, found.more, found.states.total()) == (counted, more, counted)
    assert reads.count(threading.current_thread()) == asked


def test_the_overview_reads_one_page_of_the_bucket_when_the_view_is_lost_meanwhile(
    many: Registry, monkeypatch: pytest.MonkeyPatch
):
    """Reading all listed voices from the bucket, one by one, would keep the page waiting for seconds."""
    monkeypatch.setattr(situation, "_STEP", 2)
    names, generation = SpeakerView.names, many.opened.generation

    def refuse(*_: object) -> Any:
        raise ViewAway

    def list_and_lose(self: SpeakerView, *arguments: Any, **options: Any) -> list[str]:
        found = names(self, *arguments, **options)
        monkeypatch.setattr(generation, "read", refuse)
        return found

    monkeypatch.setattr(SpeakerView, "names", list_and_lose)
    found = many.app.state.parts.situation.voices("default")
    assert (found.examined, found.more) == (2, True)


def test_a_page_says_how_far_it_searched_and_leads_to_what_begins_so(
    many: Registry, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise a person with many voices takes the first part of a search for the whole."""
    monkeypatch.setattr(pages, "NAMES_SEARCHED", 2)
    with Visitor(many) as visitor:
        none = visitor.get("/voices?q=e").text
        assert "None of the voices up to “<bdi>b</bdi>” matches." in none
        [leap] = re.findall(r'<a href="/dashboard([^"]*)">Go to the names that begin with', none)
        assert ">e</bdi></a>" in visitor.get(unescape(leap)).text
        some = visitor.get("/voices?q=a").text
        assert "These are the matches up to “<bdi>b</bdi>”." in some
        assert "Go to the names" not in some, "they have been searched"
        assert "matches" not in visitor.get("/voices").text


@pytest.mark.parametrize("part", ["ab", "a", "b0", "1", "0", ".", "ä", "\ue000", "e\U00010000"])
def test_a_cursor_before_a_part_skips_no_name_that_begins_with_it(part: str):
    cursor = cursor_before(part)
    assert cursor < part
    assert not cursor.startswith("/"), "that is a cursor of the bucket"
    assert quote(cursor) is not None


def test_the_sdk_searches_on_over_pages_without_any(many: Registry, monkeypatch: pytest.MonkeyPatch):
    """The SDK goes on searching over pages that hold no match. It used to stop at the first one and report
    that there were no voices.
    """
    monkeypatch.setattr(paging, "MAX_EXAMINED", 1)
    monkeypatch.setattr(paging, "PAGE_SIZE", 2)
    monkeypatch.setattr(pages, "NAMES_SEARCHED", 2)
    with RegistryClient(many.url) as client:
        assert [voice.name for voice in client.list(q="Z")] == ["z"]
        assert [voice.name for voice in client.list(state="pending")] == ["z"]
