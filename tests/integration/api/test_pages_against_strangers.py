"""Tests of what strangers can put on the pages and make of them: texts on every page, frames around it, and
cookies that somebody else set.
"""

import asyncio
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from services.registry_api.operations.delete import delete
from services.registry_api.pages.sessions import COOKIE, FORM_COOKIE
from services.shared.model.aliases import with_alias
from services.shared.model.changes import edited
from services.shared.model.records import About
from services.shared.model.speaker import SpeakerId
from services.shared.view.workers import FailedProof, WorkerReport
from speaker_registry.errors import WorkerError
from speaker_registry.names import parse_speaker_name
from tests.encoders import make_current
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, key
from tests.integration.api.conftest import empty
from tests.integration.api.pages import TEXTS, Page, Visitor, strange_elements
from tests.integration.api.registry import OTHER_CLIP, PROFILE, WIDER, Registry

CONTROLS = "\u202e\u2066\u200b"
NAMES = [text.replace("/", "")[:120] for text in TEXTS]
"""Names of voices have no slash and 128 characters at most."""
GONE = [f"~{name[:100]}" for name in NAMES]
"""Names of voices that were deleted."""
PAGES = [
    "",
    "/voices",
    "/jobs",
    "/jobs?state=failed",
    "/profiles",
    "/keys",
    *(f"/voices/{number}" for number in range(len(TEXTS))),
    *(f"/voices/{number}?version=1&beside=2" for number in range(len(TEXTS))),
    *(f"/voices/0?beside={quote(name)}" for name in NAMES),
    "/voices/0?beside=%3Cb%3E%E2%80%AE",
    *(f"/voices?q={quote(text[:100])}" for text in TEXTS),
    *(f"/voices/@new?name={quote(name)}&voice_id={quote(name)}" for name in NAMES),
    *(f"/login?next={quote(text[:100])}" for text in TEXTS),
    *(f"/voices?state={quote(text[:100])}" for text in TEXTS),
    *(f"/voices/{quote(name[:100])}" for name in NAMES),
    *(f"/voices/{quote(name)}" for name in GONE),
]
"""Every page, with all that it takes of an address. A number stands for the voice with this text."""
ABOUT = ("description", "label", "value", "alias", "key")
SHOWN = {
    "": TEXTS,
    "/voices": NAMES,
    "/jobs": [*NAMES, *TEXTS],
    "/profiles": TEXTS,
    "/keys": [text[:128] for text in TEXTS],
    **{
        f"/voices/{number}": [NAMES[number], text, *(f"{what} {text}" for what in ABOUT)]
        for number, text in enumerate(TEXTS)
    },
    **{f"/voices/{quote(name)}": [name, f"key {text}"] for name, text in zip(GONE, TEXTS, strict=True)},
}
"""Pages -> the texts that a person must be able to read there."""


def as_shown(text: str) -> str:
    """Return a text as pages show it: with the numbers of its controls, and with single spaces."""
    return " ".join(re.sub(f"[{CONTROLS}]", lambda one: f"U+{ord(one[0]):04X}", text).split())


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory, valkey: Any, decoder: Any) -> Iterator[Registry]:
    """A registry in which everything that others may write is written by strangers."""
    folder = tmp_path_factory.mktemp("strangers")
    with Registry(folder, empty(valkey, 15), decoder, access=CLOSED) as registry:
        for name, text in zip(NAMES, TEXTS, strict=True):
            me = bearer(BOOTSTRAP)
            for clip in ({}, {"clip": OTHER_CLIP}):
                fields = {"ref_text": text, "consent": text[:2000], "speaker_description": text}
                registry.upload(name, headers=me, **fields, **clip)
                registry.worker.fail_all(name, WorkerError(text))
            key(registry, "engine", name=text[:128])
            _describe(registry, name, text)
        for name, text in zip(GONE, TEXTS, strict=True):
            registry.upload(name, headers=me)
            speaker, opened = parse_speaker_name(name), registry.opened
            delete(opened.speakers, opened.jobs, registry.namespace, speaker, by=f"key {text}")
        registry.ready("plain", headers=me)
        profiles = registry.opened.profile_records
        make_current(profiles, PROFILE, registry.worker.fingerprint, {text: text for text in TEXTS})
        make_current(profiles, WIDER, "sha256:" + "2" * 64, {text: text for text in TEXTS})
        for text in TEXTS:
            proof = FailedProof(worker=text, device=text, reason=text)
            registry.opened.workers.report_failed({WIDER: proof})
            report = WorkerReport(device=text, proven_at={PROFILE: 1.0}, extracted_last_hour={})
            registry.opened.workers.beat(text, {PROFILE: registry.worker.fingerprint}, report)
        yield registry


def _describe(registry: Registry, name: str, text: str) -> None:
    """Say about a voice what the API would not accept, and some newer release may."""
    about = About(description=f"description {text}", labels={f"label {text}": f"value {text}"})
    speakers, speaker_id = registry.opened.speakers, SpeakerId.of("default", parse_speaker_name(name))
    for did, decide in (
        ("edit", lambda document: edited(document, about, ())),
        ("alias", lambda document: with_alias(document, f"alias {text}", document.newest.vuid, ())),
    ):
        with speakers.changing(speaker_id, by=f"key {text}") as change:
            change.commit(decide, did=did)


@pytest.fixture(scope="module")
def operator(strange: Registry) -> Iterator[Visitor]:
    with Visitor(strange, str(BOOTSTRAP)) as visitor:
        yield visitor


@pytest.fixture(scope="module")
def ids(strange: Registry) -> list[str]:
    """Return the ids of the voices with the texts, in their order."""
    listed = strange.client.get("/v1/voices?limit=100", headers=bearer(BOOTSTRAP)).json()["data"]
    by_name = {voice["name"]: voice["id"] for voice in listed}
    return [by_name[name] for name in NAMES]


def address_of(path: str, ids: list[str]) -> str:
    return re.sub(r"^/voices/(\d+)", lambda one: f"/voices/{ids[int(one[1])]}", path)


@pytest.mark.parametrize("path", PAGES)
def test_text_of_strangers_is_text_on_every_page(operator: Visitor, ids: list[str], path: str):
    """Names, transcripts, consents, reasons, names of keys, and what workers say of encoders: none of it is
    taken for HTML, and none of it changes the direction of the text around it.
    """
    page = Page(operator.get(address_of(path, ids)).text)
    assert list(strange_elements(page)) == []
    assert not set(page.text) & set(CONTROLS)
    text = as_shown(page.text)
    assert [one[:60] for one in SHOWN.get(path, ()) if as_shown(one) not in text] == []


@pytest.mark.parametrize("path", ["", "/jobs", "/jobs?state=superseded", "/profiles", "/voices/plain"])
def test_what_can_have_the_focus_in_a_live_part_has_an_id_of_its_own(
    operator: Visitor, ids: list[str], path: str
):
    """By the id, the focus comes back after the part was fetched again."""
    page = Page(operator.get(address_of(path, ids)).text)
    assert page.live
    assert [one for one in page.live if not one.get("id")] == []
    found = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("path", ["", "/keys", "/login", "/nowhere", "/voices?state=wrong"])
@pytest.mark.parametrize("signed_in", [True, False])
def test_no_page_can_be_put_into_a_frame(operator: Visitor, strange: Registry, path: str, signed_in: bool):
    """Another site could lay its own page over a form of ours and have a person click there."""
    with httpx.Client(base_url=strange.url) as anybody:
        http = operator.http if signed_in else anybody
        for headers in (
            {},
            {"HX-Request": "true"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        ):
            answer = http.get(f"/dashboard{path}", headers=headers)
            assert answer.headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"


def over_https(registry: Registry, cookie: str = "", path: str = "") -> httpx.Response:
    """Ask for a page, or for the overview, as if over HTTPS, as a proxy that ends TLS has it."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(registry.app)
        async with httpx.AsyncClient(transport=transport, base_url="https://registry.example") as http:
            return await http.get(f"/dashboard{path}", headers={"Cookie": cookie} if cookie else {})

    return asyncio.run(ask())


def test_over_https_the_session_is_never_sent_over_http(strange: Registry):
    """Whoever listens to a request over HTTP must not get the session."""
    with Visitor(strange) as visitor:
        assert "Secure" not in visitor.get("/login").headers["set-cookie"]
    cookie = over_https(strange, path="/login").headers["set-cookie"].split("; ")
    assert cookie[0].startswith(f"__Secure-{FORM_COOKIE}=")
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/dashboard"} <= set(cookie)


def test_over_https_a_cookie_that_was_set_over_http_is_no_session(strange: Registry):
    """Whoever answers for the registry's name over HTTP can set cookies for it, and would sign a person in as
    somebody else.
    """
    with Visitor(strange, str(BOOTSTRAP)) as visitor:
        planted = visitor.http.cookies[COOKIE]
    assert over_https(strange, f"__Secure-{COOKIE}={planted}").status_code == 200
    assert over_https(strange, f"{COOKIE}={planted}").status_code == 303
