"""Tests of the pages with a real browser.
Each test also fails if the browser reports an error, such as code that the policy of the pages forbids.
"""

import io
import re
import wave
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from services.registry_api.pages import keys
from speaker_registry.errors import WorkerError
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, id_of, key
from tests.integration.api.browser import (
    CHROMIUM,
    NO_CHROMIUM,
    PATIENCE_MS,
    PHONE,
    Open,
    chromium,
    opener,
    sign_in,
)
from tests.integration.api.conftest import empty
from tests.integration.api.registry import CLIP, OTHER_CLIP, PROFILE, Registry

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
PATHS = ("", "/voices", "/voices/@new", "/jobs", "/profiles", "/keys")
_TELLS_PROBLEM = "text => document.dispatchEvent(new CustomEvent('registry:problem', {detail: text}))"
_COUNTS_MESSAGES = """() => {
    messages = 0;
    const count = records => records.forEach(record => { messages += record.addedNodes.length; });
    new MutationObserver(count).observe(document.getElementById("stale"), {childList: true});
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--use-fake-device-for-media-stream") as browser:
        yield browser


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, valkey: Any, decoder: Any) -> Iterator[Registry]:
    """A registry that requires keys."""
    with Registry(tmp_path_factory.mktemp("browser"), empty(valkey, 14), decoder, access=CLOSED) as registry:
        yield registry


@pytest.fixture
def visit(browser: Browser, closed: Registry) -> Iterator[Open]:
    with opener(browser, closed.url) as visit:
        yield visit


@pytest.fixture(autouse=True)
def patient() -> None:
    """However busy the machine is, an expectation has time to come true."""
    expect.set_options(timeout=PATIENCE_MS)


def drop(page: Page, content: bytes, name: str = "clip.wav", times: int = 1) -> None:
    """Drop a file where clips are dropped. It has the content as often as this."""
    transfer = page.evaluate_handle(
        """([bytes, name, times]) => {
            const transfer = new DataTransfer();
            const parts = Array(times).fill(new Uint8Array(bytes));
            transfer.items.add(new File(parts, name, {type: "audio/wav"}));
            return transfer;
        }""",
        [list(content), name, times],
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})


def test_a_dropped_clip_becomes_a_voice_that_plays(visit: Open, closed: Registry, name: str):
    """The way of a person: sign in, drop a clip, watch it become ready, hear it, delete it."""
    page = visit("/voices/@new")
    expect(page).to_have_title(re.compile("Register a voice"))
    page.locator("[name=name]").fill(name)
    drop(page, CLIP)
    expect(page.locator("#chosen")).to_contain_text("clip.wav")
    page.get_by_label("Consent").fill("cons_1")
    page.get_by_label("Transcript").fill("The quick brown fox.")
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_text("0 of 1 profiles ready")).to_be_visible()
    expect(page).to_have_url(re.compile("/dashboard/voices/voice_"))
    closed.worker.finish_all(name)
    expect(page.locator(".summary .state")).to_have_text("ready")  # without loading the page again
    page.get_by_text("Tensors and provenance").click()
    expect(page.get_by_role("rowheader", name="speaker_embedding")).to_be_visible()
    page.locator("audio").evaluate("audio => { audio.muted = true; return audio.play(); }")
    page.get_by_text("Delete…").click()
    page.get_by_role("button", name="Delete the voice").click()
    expect(page.get_by_text("it can be undeleted")).to_be_visible()
    assert closed.client.get(f"/v1/voices/{name}", headers=bearer(BOOTSTRAP)).status_code == 404
    page.get_by_role("button", name="Undelete it").click()
    expect(page.get_by_text("Voice undeleted")).to_be_visible()
    expect(page.locator(".summary .state")).to_have_text("ready")


def test_a_file_that_is_no_clip_loses_nothing(visit: Open, name: str):
    """The reason appears on the form, and what was typed is still there."""
    page = visit("/voices/@new")
    page.locator("[name=name]").fill(name)
    page.get_by_label("Consent").fill("cons_1")
    page.locator("#clip").set_input_files({"name": "x.wav", "mimeType": "audio/wav", "buffer": b"no audio"})
    page.get_by_role("button", name="Register").click()
    expect(page.locator("#problem")).to_contain_text("Unsupported audio")
    expect(page.locator("[name=name]")).to_have_value(name)


def test_a_file_that_is_too_large_or_too_long_is_not_sent(visit: Open, name: str):
    """Nobody waits for an upload that would be refused, and everybody reads what is accepted."""
    page = visit("/voices/@new")
    page.locator("[name=name]").fill(name)
    page.get_by_label("Consent").fill("cons_1")
    drop(page, bytes(1024), "all-day.wav", times=200 * 1024)
    expect(page.locator("#chosen")).to_have_text("all-day.wav has 200.0 MiB; accepted: up to 10.0 MiB.")
    wav = {"name": "minute.wav", "mimeType": "audio/wav", "buffer": silence(seconds=61)}
    page.locator("#clip").set_input_files(wav)
    expect(page.locator("#chosen")).to_have_text(
        "minute.wav lasts 61.0 s, which is too long; accepted: 1 to 30 seconds."
    )
    page.get_by_role("button", name="Register", exact=True).click()
    assert page.locator("#clip").evaluate("clip => clip.validationMessage") != ""
    expect(page).to_have_url(re.compile("/dashboard/voices/@new$"))
    drop(page, CLIP)
    expect(page.locator("#chosen")).to_have_text(re.compile(r"clip.wav, 1.2 s, "))


def silence(seconds: int, rate: int = 8000) -> bytes:
    with io.BytesIO() as file:
        with wave.open(file, "wb") as clip:
            clip.setparams((1, 1, rate, 0, "NONE", ""))
            clip.writeframes(bytes([128]) * (seconds * rate))
        return file.getvalue()


def test_a_recording_becomes_a_voice(visit: Open, name: str):
    """Whoever has a microphone needs no other program. The browser of this test has one that beeps."""
    page = visit("/voices/@new", permissions=["microphone"])
    page.locator("[name=name]").fill(name)
    page.get_by_label("Consent").fill("cons_1")
    page.get_by_role("button", name="Record a clip").click()
    expect(page.locator("#recording")).to_have_text(re.compile("Recording, 2 of at most 30 seconds"))
    page.get_by_role("button", name="Stop recording").click()
    expect(page.locator("#chosen")).to_have_text(re.compile(r"recording.webm"))
    expect(page.get_by_role("button", name="Record again")).to_be_visible()
    page.get_by_role("button", name="Register", exact=True).click()
    expect(page).to_have_url(re.compile("/dashboard/voices/voice_"))
    expect(page.get_by_text("audio/webm")).to_be_visible()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("", "The browser may not use the microphone. Allow it for this page"),
        (
            "navigator.mediaDevices.getUserMedia = async () => "
            "{ throw new DOMException('', 'NotFoundError'); }",
            "No microphone was found. Connect one, or choose a file.",
        ),
        (
            "Object.defineProperty(navigator, 'mediaDevices', {value: undefined})",
            "Browsers lend the microphone only to pages over HTTPS.",
        ),
    ],
    ids=["refused", "none", "without https"],
)
def test_a_microphone_that_cannot_be_used_is_told_in_words(visit: Open, change: str, said: str):
    """A person learns what to do about it, and can still choose a file."""
    page = visit("/voices/@new")
    page.evaluate(f"() => {{ {change} }}")
    page.get_by_role("button", name="Record a clip").click()
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.get_by_role("button", name="Record a clip")).to_be_enabled()


def test_two_versions_are_heard_in_turn(visit: Open, closed: Registry, name: str):
    """To compare two takes, a person hears the same place of both."""
    closed.upload(name, ref_text="The first take.", headers=bearer(BOOTSTRAP))
    closed.upload(name, clip=OTHER_CLIP, ref_text="The second take.", headers=bearer(BOOTSTRAP))
    page = visit(f"/voices/{name}")
    page.get_by_role("link", name="Compare version 2 with version 1").click()
    expect(page.get_by_role("heading", name="Two versions compared")).to_be_visible()
    first, second = page.get_by_label("The clip of version 1"), page.get_by_label("The clip of version 2")
    first.evaluate("one => { one.loop = true; one.playbackRate = 0.1; return one.play(); }")
    second.evaluate("one => { one.playbackRate = 0.1; return one.play(); }")
    assert first.evaluate("one => one.paused")
    page.get_by_role("link", name="End the comparison").click()
    expect(second).to_have_count(0)


def test_a_version_is_made_the_default_and_that_is_undone(visit: Open, closed: Registry, name: str):
    """A person who looks at an old page is told so, and changes nothing."""
    for clip in (CLIP, OTHER_CLIP):
        closed.ready(name, clip=clip, headers=bearer(BOOTSTRAP))
    page, old = visit(f"/voices/{name}"), visit(f"/voices/{name}", java_script_enabled=False)
    page.get_by_role("button", name="Make default version 1").click()
    served = page.get_by_role("row").filter(has_text="served")
    expect(served.get_by_role("link", name="1", exact=True)).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(served.get_by_role("link", name="2", exact=True)).to_be_visible()
    old.get_by_role("button", name="Make default version 1").click()
    expect(old.get_by_role("heading", name="Changed meanwhile")).to_be_visible()


def test_what_is_said_of_a_voice_is_edited_and_its_versions_are_tidied_up(
    visit: Open, closed: Registry, name: str
):
    """What is refused is told where a person looks, and what was typed stays."""
    for clip in (CLIP, OTHER_CLIP):
        closed.ready(name, clip=clip, headers=bearer(BOOTSTRAP))
    page = visit(f"/voices/{name}")
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Description").fill("Fairy tales")
    page.get_by_label("Labels").fill("-team=blue")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("main")).to_contain_text("The key '-team' of a label is invalid")
    expect(page.get_by_label("Description")).to_have_value("Fairy tales")
    page.get_by_label("Labels").fill("team=blue")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("team=blue")).to_be_visible()
    page.get_by_text("Set another alias").click()
    page.get_by_label("Alias", exact=True).fill("default")
    page.get_by_role("button", name="Set the alias").click()
    expect(page.locator("#problem")).to_contain_text("There is an alias default already")
    expect(page.locator("#problem")).to_be_in_viewport()
    page.get_by_label("Alias", exact=True).fill("prod")
    page.locator(".more select").select_option("1")
    page.get_by_role("button", name="Set the alias").click()
    expect(page.get_by_text("Before, there was no such alias.")).to_be_in_viewport()
    page.locator("summary", has_text="Delete… version 1").click()
    expect(page.get_by_text("Version 1 cannot be deleted while engines find it under prod.")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Undo prod").click()
    expect(page.get_by_text("Before, there was no such alias.")).to_have_count(0)  # the page was replaced
    page.locator("summary", has_text="Delete… version 1").click()
    page.get_by_role("button", name="Delete version 1", exact=True).click()
    expect(page.get_by_text("Version 1 is deleted.")).to_be_in_viewport()


def test_jobs_are_live_and_can_be_cancelled(visit: Open, closed: Registry, name: str):
    """A job appears on an open page by itself, one button cancels it, and another makes a new one."""
    page = visit("/jobs?state=queued")
    closed.upload(name, headers=bearer(BOOTSTRAP))
    row = page.get_by_role("row", name=re.compile(name))
    expect(row).to_contain_text(f"no worker serves profile '{PROFILE}'")
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_have_count(0)
    page.goto("/dashboard/jobs?state=canceled")
    row.get_by_role("button", name="Try again").click()
    expect(page).to_have_url(re.compile("/jobs$"))
    expect(row.first).to_contain_text("queued")


def test_a_part_that_changes_keeps_the_focus_and_what_is_selected(visit: Open, closed: Registry, name: str):
    """Whoever works by keyboard goes on where they were, and a reason can be copied."""
    closed.upload(name, headers=bearer(BOOTSTRAP))
    page = visit("/jobs")
    link = page.get_by_role("link", name=name)
    link.focus()
    page.evaluate("document.getElementById('live').dataset.former = 'yes'")
    expect(page.locator("#live[data-former]")).to_have_count(0)
    expect(link).to_be_focused()
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    link.evaluate("one => getSelection().selectAllChildren(one)")
    page.wait_for_timeout(4500)
    assert page.evaluate("getSelection().toString()") == name
    assert not asked
    with page.expect_request("**/dashboard/jobs"):
        page.evaluate("getSelection().removeAllRanges()")


def test_a_list_that_is_fetched_again_stays_where_a_person_works(visit: Open, closed: Registry, name: str):
    """Browsers hold on to the focused element while a part of the page is replaced, and scroll after it."""
    for number in range(15):
        closed.upload(f"{name}-{number}", headers=bearer(BOOTSTRAP))
    page = visit("/jobs", viewport={"width": 1280, "height": 300})
    link = page.get_by_role("link", name=f"{name}-7", exact=True)
    link.evaluate("one => { one.scrollIntoView({block: 'center'}); one.focus({preventScroll: true}); }")
    read_at = page.evaluate("scrollY")
    assert read_at > 0
    page.evaluate("document.getElementById('live').dataset.former = 'yes'")
    expect(page.locator("#live[data-former]")).to_have_count(0)
    expect(link).to_be_focused()
    assert page.evaluate("scrollY") == read_at


@pytest.mark.parametrize("ending", ["namespace", "key revoked"])
def test_what_is_typed_stays_when_the_session_changes_in_another_tab(
    visit: Open, closed: Registry, name: str, ending: str
):
    """A person copies it before they load the page again. The page asks for nothing more: enough requests
    with a key that has ended would lock out everybody at this address. A page without it loads itself again.
    """
    closed.upload(name, headers=bearer(BOOTSTRAP))
    made = key(closed, "voices:read", "voices:write", "admin", namespace="*")
    page = visit(f"/voices/{name}", key=made)
    typed, idle = page.get_by_label("Alias", exact=True), page.context.new_page()
    idle.goto(f"/dashboard/voices/{name}")
    page.get_by_text("Set another alias").click()
    typed.fill("prod")
    if ending == "namespace":
        other = page.context.new_page()
        other.goto("/dashboard/voices")
        other.locator(".menu summary").click()
        other.get_by_label("Show another namespace").fill("theirs")
        other.get_by_role("button", name="Show").click()
        expect(idle.get_by_role("heading", name="Not found")).to_be_visible()
    else:
        closed.client.delete(f"/v1/keys/{id_of(made)}", headers=bearer(BOOTSTRAP))
        expect(idle).to_have_url(re.compile(f"/login.*next=%2Fdashboard%2Fvoices%2F{name}"))
    expect(page.locator("#stale")).to_contain_text("Copy what you typed")
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert not asked
    expect(page.locator("#stale")).to_contain_text("Copy what you typed")
    expect(typed).to_have_value("prod")


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (502, "text/html", "<p>Bad</p>"),
        (200, "text/html", "<h1>Sign in to Example</h1>"),
        (200, "application/json", "{}"),
        (204, "text/html", ""),
    ],
)
def test_an_answer_that_is_no_page_takes_the_place_of_nothing(
    visit: Open, closed: Registry, name: str, status: int, kind: str, body: str
):
    """Proxies answer for a registry that restarts, and what is on the screen is still worth reading."""
    closed.upload(name, headers=bearer(BOOTSTRAP))
    page = visit("/jobs")
    expect(page.get_by_role("link", name=name)).to_be_visible()
    page.route("**/dashboard/jobs*", lambda route: route.fulfill(status=status, content_type=kind, body=body))
    expect(page.locator("#stale")).to_contain_text(f"(status {status})")
    expect(page.get_by_role("link", name=name)).to_be_visible()
    page.unroute("**/dashboard/jobs*")
    closed.worker.finish_all(name)
    expect(page.get_by_role("row", name=re.compile(name))).to_contain_text("succeeded")
    expect(page.locator("#stale")).to_be_empty()


@pytest.mark.parametrize("failure", ["the registry's", "a proxy's", "no answer"])
def test_a_page_that_cannot_be_fetched_again_stays_where_a_person_reads(
    visit: Open, closed: Registry, name: str, failure: str
):
    """The failure is told once, and no longer than it lasts. That of a button stays."""
    closed.upload(name, headers=bearer(BOOTSTRAP))
    page = visit(f"/voices/{name}", viewport={"width": 800, "height": 300})
    page.route("**/pictures", without_pictures)
    address = f"**/dashboard/voices/{name}"
    refused = "Nothing was stored."
    page.evaluate(_TELLS_PROBLEM, refused)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    read_at = page.evaluate("scrollY")
    page.evaluate(_COUNTS_MESSAGES)
    if failure == "the registry's":
        closed.client.delete(f"/v1/voices/{name}", headers=bearer(BOOTSTRAP))
    elif failure == "a proxy's":
        page.route(address, lambda route: route.fulfill(status=502, content_type="text/html", body="Bad"))
    else:
        page.route(address, lambda route: route.abort())
    stale = page.locator("#stale")
    expect(stale).to_contain_text(
        {"the registry's": "Not found.", "a proxy's": "status 502", "no answer": "does not answer"}[failure]
    )
    for _ in range(2):
        with page.expect_request(address):
            pass
    assert page.evaluate("messages") == 1
    assert page.evaluate("scrollY") >= read_at
    page.unroute(address)
    closed.upload(name, headers=bearer(BOOTSTRAP))
    expect(stale).to_be_empty()
    expect(page.locator("#problem")).to_have_text(refused)


def test_pictures_that_cannot_be_fetched_are_asked_for_again(visit: Open, closed: Registry, name: str):
    """No part of the page of a voice that is ready changes, so only the pictures tell that all is well."""
    closed.upload(name, headers=bearer(BOOTSTRAP))
    closed.worker.finish_all(name)
    page = visit("/voices")
    page.route("**/pictures", lambda route: route.fulfill(content_type="text/html", body="<h1>Sign in</h1>"))
    page.goto(f"/dashboard/voices/{name}")
    expect(page.locator("#stale")).to_contain_text("not a page of the registry (status 200)")
    expect(page.locator("#live[hx-get]")).to_have_count(0)
    page.unroute("**/pictures")
    page.route("**/pictures", without_pictures)
    expect(page.get_by_text("No pictures")).to_be_visible()
    expect(page.locator("#stale")).to_be_empty()


def without_pictures(route: Route) -> None:
    """Answer in place of the registry that there are no pictures."""
    part = route.request.headers["hx-target"]
    route.fulfill(content_type="text/html", body=f'<p id="{part}">No pictures</p>')


def test_a_search_does_not_show_what_is_not_the_list(visit: Open, closed: Registry, name: str):
    """A person is told, and can search again."""
    closed.upload(name, headers=bearer(BOOTSTRAP))
    page = visit("/voices")
    page.route("**/voices?*", lambda route: route.fulfill(content_type="text/html", body="<h1>Sign in</h1>"))
    page.get_by_label("Search").press_sequentially(name[:-1])
    expect(page.locator("#problem")).to_contain_text("not a page of the registry (status 200)")
    expect(page.get_by_role("link", name=name)).to_be_visible()
    page.unroute("**/voices?*")
    page.get_by_label("Search").press_sequentially(name[-1])
    expect(page).to_have_url(re.compile(f"q={name}"))
    expect(page.locator("#problem")).to_be_empty()


def test_a_search_needs_no_button(visit: Open, closed: Registry, name: str):
    """The list follows what is typed, and its address can be shared."""
    for one in (f"{name}-left", f"{name}-right"):
        closed.upload(one, headers=bearer(BOOTSTRAP))
    page = visit("/voices")
    page.get_by_label("Search").press_sequentially(f"{name}-ri")
    expect(page.get_by_role("link", name=f"{name}-right")).to_be_visible()
    expect(page.get_by_role("link", name=f"{name}-left")).to_have_count(0)
    expect(page).to_have_url(re.compile(f"q={name}-ri"))
    expect(page.get_by_label("Search")).to_be_focused()


def test_a_refused_key_loses_nothing_and_a_made_one_is_shown_once(visit: Open, name: str):
    """The reason appears above the form. On the way back, no cache of the page shows the key again."""
    page = visit("/keys?q=nobody")
    page.get_by_text("Make a key").click()
    form = page.locator("details.card")
    form.get_by_label("Name", exact=True).fill(name)
    form.get_by_label("Namespace").fill("No namespace")
    form.get_by_label("see voices").check()
    form.get_by_role("button", name="Make the key").click()
    expect(page.locator("#problem")).to_contain_text("The namespace is not accepted")
    expect(form.get_by_label("Name", exact=True)).to_have_value(name)
    expect(form.get_by_label("see voices")).to_be_checked()
    form.get_by_label("Namespace").fill("ours")
    form.get_by_role("button", name="Make the key").click()
    made = page.get_by_label("The new key")
    expect(made).to_be_in_viewport()
    expect(made).to_be_focused()
    expect(page).to_have_url(re.compile("/keys$"))
    kept = page.evaluate("JSON.stringify([history.state, {...sessionStorage}, {...localStorage}])")
    assert made.input_value() not in kept
    page.go_back()
    expect(made).to_have_count(0)
    page.go_forward()
    expect(page.get_by_role("row", name=name)).to_be_visible()
    expect(made).to_have_count(0)
    page.evaluate("document.body.innerHTML = '<p class=new-key></p>'; dispatchEvent(new Event('pagehide'))")
    expect(page.locator(".new-key")).to_have_count(0)


def test_revoking_its_own_key_ends_the_session(visit: Open):
    """A new key signs in, and whoever revokes it is asked to sign in again."""
    page = visit("/keys")
    page.locator("details.card").evaluate("one => { one.open = true; }")
    page.locator("[name=name]").fill("browser")
    page.locator("main [name=namespace]").fill("*")
    page.get_by_label("manage keys").check()
    page.get_by_role("button", name="Make the key").click()
    made = page.get_by_label("The new key").input_value()
    other = visit("/keys", key=made)
    other.get_by_role("row", name=re.compile(made.split("_")[1])).get_by_text("Revoke…").click()
    other.get_by_role("button", name="Revoke the key").click()
    expect(other).to_have_url(re.compile("/dashboard/login"))


def test_a_key_is_rotated_on_a_phone_without_scripts(visit: Open, closed: Registry, name: str):
    """What opens below the buttons of a row fits the screen, whichever button it belongs to."""
    old = key(closed, "voices:read", name=name)
    page = visit("/keys", viewport=PHONE, java_script_enabled=False)
    row = page.get_by_role("row", name=name)
    for label in ("Revoke…", "Rotate…"):
        summary = row.locator("summary", has_text=label)
        summary.click()
        box = row.locator("details[open] .panel").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
        if label == "Revoke…":
            summary.click()
    page.get_by_label("The old key ends").locator("visible=true").select_option("in 1 hour")
    row.get_by_role("button", name="Rotate the key").click()
    new = page.get_by_label("The new key").input_value()
    for one in (old, new):
        assert closed.client.get("/v1/voices", headers=bearer(one)).status_code == 200


def test_forms_work_without_scripts(visit: Open, closed: Registry, name: str):
    """Without scripts people sign in, register, search and see the state."""
    page = visit("/voices/@new", java_script_enabled=False)
    expect(page.get_by_text("Choose a clip")).to_be_visible()
    expect(page.get_by_text("or drop it here")).to_be_hidden()
    page.locator("[name=name]").fill(name)
    page.locator("#clip").set_input_files({"name": "a.flac", "mimeType": "audio/flac", "buffer": OTHER_CLIP})
    page.get_by_label("Consent").fill("cons_1")
    page.get_by_role("button", name="Register").click()
    expect(page.locator(".summary .state")).to_have_text("pending")
    page.goto(f"/dashboard/voices?q={name}")
    expect(page.get_by_role("link", name=name)).to_be_visible()


def test_a_form_that_is_too_large_to_be_read_is_where_it_was_without_scripts(visit: Open, name: str):
    """The registry does not read such a form, so the way back of the browser leads to what was typed."""
    page = visit("/voices/@new", java_script_enabled=False)
    typed = {"name": name, "ref_text": "One.\nTwo.", "consent": "cons_1", "speaker_description": "Low"}
    for field, text in typed.items():
        page.locator(f"[name={field}]").fill(text)
    large = {"name": "all-day.wav", "mimeType": "audio/wav", "buffer": bytes(12 * 1024**2)}
    page.locator("#clip").set_input_files(large)
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_role("heading", name="Too large")).to_be_visible()
    expect(page.get_by_text("Most browsers keep what you typed there.")).to_be_visible()
    expect(page.get_by_role("link", name="Back to the page before")).to_have_count(0)
    page.go_back()
    for field, text in typed.items():
        expect(page.locator(f"[name={field}]")).to_have_value(text)


def test_a_form_whose_session_has_ended_is_where_it_was_without_scripts(
    visit: Open, closed: Registry, name: str
):
    """Whoever signs in again comes back to what they typed, and sends it."""
    made = key(closed, "voices:read", "voices:write", name=name)
    page = visit("/voices/@new", key=made, java_script_enabled=False)
    page.locator("[name=name]").fill(name)
    page.get_by_label("Transcript").fill("One.\nTwo.")
    page.get_by_label("Consent").fill("cons_1")
    clip = {"name": "a.flac", "mimeType": "audio/flac", "buffer": OTHER_CLIP}
    page.locator("#clip").set_input_files(clip)
    closed.client.delete(f"/v1/keys/{id_of(made)}", headers=bearer(BOOTSTRAP))
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Sign in on a new tab").click()
    sign_in(opened.value, str(BOOTSTRAP))
    expect(opened.value.get_by_role("button", name="Sign out")).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Transcript")).to_have_value("One.\nTwo.")
    expect(page.get_by_label("Consent")).to_have_value("cons_1")
    page.locator("#clip").set_input_files(clip)
    page.get_by_role("button", name="Register").click()
    expect(page.locator(".summary .state")).to_have_text("pending")


def test_of_two_people_who_roll_back_at_once_one_is_told(visit: Open, closed: Registry, name: str):
    """The sentence stays, although the page goes on asking for the pictures of the clip."""
    for clip in (CLIP, OTHER_CLIP):
        closed.ready(name, clip=clip, headers=bearer(BOOTSTRAP))
    first, second = visit(f"/voices/{name}"), visit(f"/voices/{name}")
    first.get_by_role("button", name="Make default version 1").click()
    expect(first.get_by_role("button", name="Undo")).to_be_visible()
    first.get_by_role("button", name="Undo").click()
    expect(first.get_by_role("button", name="Make default version 1")).to_be_visible()
    second.get_by_role("button", name="Make default version 1").click()
    told = "default has changed since the page with this button was loaded, and means version 2 now."
    expect(second.get_by_role("alert")).to_contain_text(told)
    for _ in range(2):
        with second.expect_response("**/pictures"):
            pass
    expect(second.get_by_role("alert")).to_contain_text(told)


@pytest.mark.parametrize(("width", "scripts"), [(390, False), (1280, True)])
def test_an_older_key_is_revoked_on_its_page(
    visit: Open, closed: Registry, name: str, width: int, scripts: bool, monkeypatch: pytest.MonkeyPatch
):
    """A page of the list fits a phone, and comes back after its forms."""
    monkeypatch.setattr(keys, "_PAGE_SIZE", 2)
    for _ in range(4):
        key(closed, "engine", name=name)
    page = visit("/keys", viewport={"width": width, "height": 800}, java_script_enabled=scripts)
    page.get_by_label("Search").fill(name)
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="Next page").click()
    expect(page).to_have_url(re.compile("after="))
    listed = page.url
    page.locator("summary", has_text="Revoke…").first.click()
    page.get_by_role("button", name="Revoke the key").click()
    expect(page.get_by_text("revoked", exact=True)).to_have_count(1)
    expect(page).to_have_url(listed)
    assert page.locator("body").evaluate("body => body.scrollWidth") <= width


def test_a_form_that_is_being_sent_is_not_sent_again(visit: Open, closed: Registry, name: str):
    """A browser shows the answer to the last click only, and a new key is in the answer to the first one."""
    key(closed, "engine", name=name)
    page = visit("/keys")
    page.evaluate("sent = 0; addEventListener('submit', event => { sent += 1; event.preventDefault(); })")
    page.locator("summary", has_text=f"Rotate… {name}").click()
    button = page.get_by_role("button", name="Rotate the key")
    button.click(click_count=2)
    assert page.evaluate("sent") == 1
    page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow'))")  # a person comes back to the page
    button.click()
    assert page.evaluate("sent") == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_both_colour_schemes(visit: Open, closed: Registry, scheme: str):
    """No page is wider than a phone, even with the longest texts, and colours follow the system's choice."""
    name = f"{scheme}-" + "m" * 110
    closed.upload(name, ref_text="w" * 4000, headers=bearer(BOOTSTRAP))
    closed.worker.take_all(name)
    closed.upload(f"{scheme}-failed", headers=bearer(BOOTSTRAP))
    closed.worker.fail_all(f"{scheme}-failed", WorkerError("x" * 4000))
    page = visit("", viewport=PHONE, color_scheme=scheme)
    mine = f"/voices/{name}"
    own = (mine, f"{mine}/about", f"/voices/@new?name={name}&voice_id=voice_0")
    for path in (*PATHS, *own, f"/voices/{scheme}-failed", "/nowhere"):
        page.goto(f"/dashboard{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        lightness = float(re.findall(r"[\d.]+", background)[0])
        assert (lightness > 0.5) == (scheme == "light")


@pytest.mark.parametrize("width", [320, 390])
def test_the_menu_of_namespaces_opens_on_the_screen(visit: Open, width: int):
    """A person has to read what they choose."""
    page = visit(viewport={"width": width, "height": 700})
    page.locator(".menu summary").click()
    box = page.locator(".menu .panel").bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= box["x"] + box["width"] <= width


def test_all_is_reached_by_keyboard_and_has_a_name(visit: Open, closed: Registry, name: str):
    """The first stop leads past the menu, each page has one heading, and each control has a name."""
    closed.upload(name, headers=bearer(BOOTSTRAP))
    page = visit()
    for path in (*PATHS, f"/voices/{name}"):
        page.goto(f"/dashboard{path}")
        assert page.locator("h1").count() == 1
        nameless = page.locator("input:visible, select:visible, textarea:visible").evaluate_all(
            "all => all.filter(one => !one.labels.length && !one.ariaLabel).map(one => one.outerHTML)"
        )
        assert not nameless
        unnamed = page.locator("a, button").evaluate_all(
            "all => all.filter(one => !one.textContent.trim() && !one.ariaLabel).map(one => one.outerHTML)"
        )
        assert not unnamed
    page.goto("/dashboard/voices")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
