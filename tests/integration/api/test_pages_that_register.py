"""Tests of the page that registers a voice, as a browser without scripts uses it."""

import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from tests.integration.api.conftest import Start
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import CLIP, OTHER_CLIP, Registry
from tests.unit.audio import clips


class InputsOf(HTMLParser):
    """The values in the form of a page as a browser sends them, and the page's text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values = dict[str, str]()
        self.text = ""
        self._typing: str | None = None
        self.feed(page.partition("<main")[2])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "input" and given.get("type") != "file":
            self.values[given["name"] or ""] = given.get("value") or ""
        elif tag == "textarea":
            self._typing = given["name"]

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._typing:
            self.values[self._typing] = self.values.get(self._typing, "") + data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._typing:
            self.values[self._typing] = self.values.get(self._typing, "").removeprefix("\n")
            self._typing = None


@pytest.fixture
def visitor(registry: Registry) -> Iterator[Visitor]:
    """A person at a registry without keys."""
    with Visitor(registry) as visitor:
        yield visitor


@pytest.mark.parametrize("of_known", [True, False], ids=["new version", "new voice"])
@pytest.mark.parametrize(
    ("clip", "status", "said"),
    [
        (b"not audio at all", 415, "Unsupported audio: this is text"),
        (b"", 400, "No audio file was chosen"),
        (b"\0" * (10 * 1024**2 + 1), 413, "Accepted: clips of up to"),
        (clips.wav(61, sample_rate=8000), 400, "Reference audio too long (61.0s). Maximum 30s"),
    ],
    ids=["no audio", "no file", "too large", "too long"],
)
def test_a_refused_clip_leaves_the_form_as_it_was_typed(
    registry: Registry, visitor: Visitor, name: str, clip: bytes, status: int, said: str, of_known: bool
):
    """Without scripts, too, nobody types a transcript again because a clip was no good."""
    strange = 'Two\r\nlines & "quotes" <b>here</b>'
    typed = {"name": name, "consent": strange[5:], "ref_text": strange, "speaker_description": "Low & slow"}
    if of_known:
        registry.upload(name)
    before = registry.client.get(f"/v1/voices/{name}").json()
    sent = typed | ({"voice_id": before["id"]} if of_known else {})
    file = {"audio_sample": ("clip.wav" if clip else "", clip, "audio/wav")}
    answer = visitor.post("/voices", sent, files=file)
    assert answer.status_code == status, answer.text
    form = InputsOf(answer.text)
    assert said in form.text
    assert "Choose the clip again" in form.text
    expected = sent | {"token": visitor.token()}
    assert form.values == {field: value.replace("\r\n", "\n") for field, value in expected.items()}
    assert ("readonly" in answer.text) == of_known
    assert registry.client.get(f"/v1/voices/{name}").json().get("versions") == before.get("versions")
    answer = visitor.http.post(
        "/dashboard/voices", data=form.values, files={"audio_sample": ("clip.wav", CLIP, "audio/wav")}
    )
    assert answer.url.path.startswith("/dashboard/voices/voice_")


def test_an_error_of_a_field_names_no_field_that_nobody_typed(visitor: Visitor, name: str):
    """The token of the session is the page's own field, and no mistake of the person."""
    typed = {"name": name, "consent": " ", "voice_id": ""}
    answer = visitor.post("/voices", typed, files={"audio_sample": ("clip.wav", CLIP, "audio/wav")})
    said = html.unescape(answer.text)
    assert answer.status_code == 400
    assert "Field 'consent' is missing or empty; received: " in said
    assert "unknown: " not in said


@pytest.mark.parametrize("again", [True, False], ids=["registered again", "deleted"])
def test_a_new_version_is_of_the_voice_that_its_page_showed(
    registry: Registry, visitor: Visitor, name: str, again: bool
):
    """It becomes neither a version of another voice of this name, nor a new voice: the former one could not
    be restored any more. What was typed stays.
    """
    registry.upload(name)
    page = visitor.get(f"/voices/{name}").text
    link = html.unescape(re.findall(r'href="/dashboard([^"]+)">New version<', page)[0])
    form = InputsOf(visitor.get(link).text).values
    registry.delete(name)
    if again:
        registry.upload(name, ref_text="Another person.")
    typed = form | {"ref_text": "All of it.", "consent": "cons_1"}
    refused = visitor.register(**typed, clip=OTHER_CLIP)
    assert refused.status_code == 409
    assert "was deleted, and its name may have been registered again since" in html.unescape(refused.text)
    assert InputsOf(refused.text).values == typed
    if again:
        assert registry.client.get(f"/v1/voices/{name}").json()["versions"] == 1
    else:
        assert registry.client.post(f"/v1/voices/{name}/undelete").status_code == 200


def test_a_form_whose_voice_id_is_none_is_refused(visitor: Visitor, name: str):
    answer = visitor.register(name, CLIP, voice_id="voice_1")
    assert answer.status_code == 400
    assert "accepted: the id of a voice" in InputsOf(answer.text).text


def test_a_name_that_is_taken_leaves_the_form_as_it_was_typed(start: Start):
    """Where voices cannot get versions, a person chooses another name and keeps the rest."""
    registry = start(registration_policy="immutable")
    registry.upload("wren")
    with Visitor(registry) as visitor:
        answer = visitor.register("wren", OTHER_CLIP, ref_text="All of it.")
        assert answer.status_code == 409
        assert "already exists" in answer.text
        assert InputsOf(answer.text).values["ref_text"] == "All of it."


def test_a_text_of_several_lines_is_the_same_by_page_and_by_api(
    registry: Registry, visitor: Visitor, name: str
):
    """Browsers send each line end as two characters. They must neither make a second version of one clip and
    transcript nor make a text too long.
    """
    text = "a\n" * 3999 + "bc"
    answer = visitor.register(name, CLIP, ref_text=text.replace("\n", "\r\n"), consent="Robin,\r\n2026")
    assert answer.url.path.startswith("/dashboard/voices/"), answer.text
    registry.upload(name, ref_text=text, consent="Robin,\n2026")
    assert registry.client.get(f"/v1/voices/{name}").json()["versions"] == 1
