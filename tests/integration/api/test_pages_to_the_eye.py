"""Looks at every page with a real browser, wide and on a phone, light and dark: axe-core finds no grave fault
of accessibility, and a picture of each page is left in `build/screenshots` for people to look at.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.http_server import http_server
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, key
from tests.integration.api.browser import CHROMIUM, NO_CHROMIUM, PHONE, WIDE, chromium, grave_faults, opener
from tests.integration.api.conftest import empty
from tests.integration.api.drawing import draw_all
from tests.integration.api.furnished import BUSY, DELETED, FAILED, MANY, SERVED, furnish
from tests.integration.api.openid import Provider, provided_by
from tests.integration.api.registry import Registry
from tools.documentation.screenshots import PICTURES, note_taken

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
SIZES = {"wide": WIDE, "phone": PHONE}
NARROW = {"width": 360, "height": 720}
"""The width of many phones, which is less than that of the pictures."""
NARROWEST = {"width": 320, "height": 640}
"""The width of the smallest phones, and of a page that is magnified four times on a small screen."""
TABLETS = (721, 768, 834, 1024, 1025)
"""Widths between the two sizes of the pictures, with both sides of each change of the layout."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PAGES = {
    "overview": "",
    "voices": "/voices",
    "voices-none": "/voices?q=nobody",
    "new-voice": "/voices/@new",
    "voice-many-versions": f"/voices/{MANY}",
    "voice-compared": f"/voices/{SERVED}?beside=1",
    "voices-compared": f"/voices/{SERVED}?beside={MANY}@2",
    "voice-not-compared": f"/voices/{SERVED}?beside=nobody",
    "voice-edit": f"/voices/{MANY}/about",
    "voice-failed": f"/voices/{FAILED}",
    "voice-busy": f"/voices/{BUSY}",
    "voice-deleted": f"/voices/{DELETED}",
    "jobs": "/jobs",
    "profiles": "/profiles",
    "keys": "/keys",
    "not-found": "/nowhere",
}
OPENED = {
    "menu": ("", "Namespace"),
    "delete-voice": (f"/voices/{MANY}", "Delete…"),
    "delete-version": (f"/voices/{MANY}", "Delete… version 1"),
    "move-alias": (f"/voices/{MANY}", "Move…"),
    "rotate-key": ("/keys", "Rotate…"),
    "revoke-key": ("/keys", "Revoke…"),
}
"""The page, and the text of what a person clicks on there."""
_LINES_OF_HEADER = """() => {
    const tops = [...document.querySelectorAll(".brand, .account > *")].map(one => {
        const box = one.getBoundingClientRect();
        return box.height > 60 ? NaN : Math.round((box.top + box.bottom) / 2 / 20);
    });
    return new Set(tops).size;
}"""
"""Counts the lines on which the name of the product, the namespace and the way out stand."""
_MOST_LINES_OF_BUTTONS = """() => {
    const lines = [...document.querySelectorAll(".versions td.end")].map(cell => {
        const boxes = [...cell.children].map(one => one.getBoundingClientRect());
        return boxes.reduce((count, box, at) => count + (at > 0 && box.top >= boxes[at - 1].bottom), 1);
    });
    return Math.max(...lines);
}"""
_LINES_OF_TEXT = """button => {
    const range = document.createRange();
    range.selectNodeContents(button);
    return range.getClientRects().length;
}"""
_STANDING_OUT = """() => [...document.querySelectorAll(".card :is(button, input, select, textarea, audio)")]
    .filter(one => !one.closest(".scroll, .panel, .hidden") && one.getBoundingClientRect().width > 0)
    .map(one => [one, one.getBoundingClientRect(), one.closest(".drop, .card").getBoundingClientRect()])
    .filter(([one, inner, frame]) => inner.right > frame.right)
    .map(([one]) => one.outerHTML.slice(0, 120))
"""
"""Lists the controls that stand out of the frame around them."""
_OPEN_ALL = """() => document.querySelectorAll("details:not(.menu, .confirm)")
    .forEach(one => { one.open = true; })
"""
_CUT_OFF = "(one => one.scrollWidth - one.clientWidth)(document.querySelector('.brand'))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory, valkey: Any, decoder: Any) -> Iterator[Registry]:
    """A registry that requires keys, as it looks after some days of use."""
    with Registry(tmp_path_factory.mktemp("eye"), empty(valkey, 14), decoder, access=CLOSED) as registry:
        furnish(registry)
        for version in (1, 2):
            registry.client.get(f"/v1/voices/{SERVED}/versions/{version}/mel.png", headers=bearer(BOOTSTRAP))
        draw_all(registry)
        yield registry


@pytest.fixture(scope="module")
def tab(browser: Browser, furnished: Registry) -> Iterator[Page]:
    """One tab for all pages, signed in."""
    with opener(browser, furnished.url) as visit:
        yield visit()


def expect_to_fit(page: Page) -> None:
    """Fail if the page is wider than the smallest phone, with all that can be opened on it."""
    page.set_viewport_size(NARROWEST)
    page.evaluate(_OPEN_ALL)
    assert _width_of(page) <= NARROWEST["width"]


def _width_of(page: Page) -> int:
    width: int = page.evaluate("document.documentElement.scrollWidth")
    return width


def look_at(page: Page, name: str) -> None:
    """Fail if the page has a grave fault or does not fit, in any size and either colour scheme."""
    for size, viewport in SIZES.items():
        page.set_viewport_size(viewport)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            PICTURES.mkdir(parents=True, exist_ok=True)
            picture = PICTURES / f"{name}-{size}-{scheme}.png"
            page.screenshot(path=picture, full_page=True)
            note_taken(picture)
            # In the dark only the colours are others.
            rules = ["color-contrast"] if scheme == "dark" else None
            assert not grave_faults(page, rules), f"{size}, {scheme}"
            assert _width_of(page) <= viewport["width"]
            assert page.evaluate(_LINES_OF_HEADER) == 1, f"{size}: the header is wrapped"
            assert page.evaluate(_CUT_OFF) <= 0, f"{size}: the name of the product is cut off"
            assert not page.evaluate(_STANDING_OUT), f"{size}: a control stands out of its frame"
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (float(re.findall(r"[\d.]+", background)[0]) > 0.5) == (scheme == "light")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_grave_fault(tab: Page, name: str):
    """Everybody can read and use each page: with little sight, by keyboard, with a screen reader."""
    tab.goto(f"/dashboard{PAGES[name]}")
    look_at(tab, name)
    expect_to_fit(tab)


@pytest.mark.parametrize("width", TABLETS)
def test_all_pages_fit_a_tablet(tab: Page, width: int):
    """What stands out at the right, such as the buttons of a row, is seen by nobody."""
    tab.set_viewport_size({"width": width, "height": 1024})

    def width_of(path: str) -> int:
        tab.goto(f"/dashboard{path}")
        return _width_of(tab)

    assert {path: found for path in PAGES.values() if (found := width_of(path)) > width} == {}


@pytest.mark.parametrize("name", OPENED)
def test_what_is_opened_on_a_page_has_no_grave_fault(tab: Page, name: str):
    """A menu or a panel lies above the page only once somebody opens it, and must fit the screen then."""
    path, label = OPENED[name]
    tab.goto(f"/dashboard{path}")
    tab.locator("summary:visible").filter(has_text=label).first.click()
    look_at(tab, f"opened-{name}")


def test_the_buttons_of_a_version_stand_on_one_line_on_a_phone(tab: Page):
    """Three buttons on two lines look like two rows, and take the place of the next version."""
    tab.set_viewport_size(NARROW)
    tab.goto(f"/dashboard/voices/{MANY}")
    assert tab.evaluate(_MOST_LINES_OF_BUTTONS) == 1


def test_pictures_that_are_not_loaded_fit_the_narrowest_phone(browser: Browser, furnished: Registry):
    """Before a picture is there, its place must not be as wide as its attributes say."""
    with opener(browser, furnished.url) as visit:
        page = visit(viewport=NARROWEST)
        page.route("**/pictures/*", lambda route: route.abort())
        page.goto(f"/dashboard/voices/{SERVED}")
        expect(page.locator(".pictures img")).to_have_count(2)
        expect_to_fit(page)


def test_the_names_of_voices_are_shown_whole_on_the_narrowest_phone(tab: Page):
    """Names with a common beginning would look alike, and a name is all that tells voices apart."""
    tab.set_viewport_size(NARROWEST)
    tab.goto("/dashboard/voices")
    names = tab.locator("table.cards .name")
    expect(names.first).to_be_visible()
    assert names.evaluate_all("all => all.every(one => one.scrollWidth <= one.clientWidth)")
    expect_to_fit(tab)


def test_the_button_that_records_takes_one_line_on_a_phone(tab: Page):
    """With its words on two lines it looks like a mistake, on the page that people use on a phone."""
    tab.set_viewport_size(NARROW)
    tab.goto("/dashboard/voices/@new")
    button = tab.locator("#record")
    expect(button).to_be_visible()
    assert button.evaluate(_LINES_OF_TEXT) == 1


def test_a_new_key_has_no_grave_fault(tab: Page):
    """A person sees a key this once, and has to be able to read and copy it."""
    tab.goto("/dashboard/keys")
    tab.get_by_text("Make a key").click()
    tab.get_by_label("Name", exact=True).fill("studio")
    tab.get_by_label("see voices").check()
    tab.get_by_role("button", name="Make the key").click()
    expect(tab.get_by_label("The new key")).to_be_visible()
    look_at(tab, "new-key")
    expect_to_fit(tab)


def test_a_page_that_is_not_allowed_has_no_grave_fault(browser: Browser, furnished: Registry):
    """Whoever is refused must be able to read why, and to go on elsewhere."""
    with opener(browser, furnished.url) as visit:
        page = visit("/keys", key=key(furnished, "voices:read", name="looks on"))
        expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
        look_at(page, "not-allowed")


def test_a_voice_with_its_pictures_has_no_grave_fault(tab: Page):
    """Who sees the pictures sees them as soon as they are there, and who does not hears what they show."""
    tab.goto(f"/dashboard/voices/{SERVED}")
    pictures = tab.locator(".pictures img")
    expect(pictures).to_have_count(2)
    for picture in pictures.all():
        expect(picture).to_have_js_property("complete", True)
        assert picture.evaluate("one => one.naturalWidth") > 0
    look_at(tab, "voice")


def test_the_page_to_sign_in_at_has_no_grave_fault(browser: Browser, furnished: Registry):
    """Whoever cannot sign in can use nothing else."""
    with opener(browser, furnished.url) as visit:
        page = visit(key=None)
        look_at(page, "sign-in")
        expect_to_fit(page)


def test_the_page_with_two_ways_to_sign_in_has_no_grave_fault(
    browser: Browser, tmp_path: Path, valkey: Any, decoder: Any
):
    """An organisation's people come by their provider, and its programs' owners by a key."""
    provider = Provider()
    with http_server(provider) as provider.issuer:
        access = provided_by(provider)
        with (
            Registry(tmp_path, empty(valkey, 11), decoder, access=access) as registry,
            opener(browser, registry.url) as visit,
        ):
            page = visit(key=None)
            look_at(page, "sign-in-provider")
            expect_to_fit(page)
