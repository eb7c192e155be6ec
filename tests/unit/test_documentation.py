"""Tests of the documentation site: its links, what it loads, and what it is made of."""

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, expect, sync_playwright

import speaker_registry
from services.registry_api.app import api_document
from tools.documentation import screenshots
from tools.documentation import site as site_module
from tools.documentation.api_reference import api_reference
from tools.documentation.links import faults_of
from tools.documentation.sdk_reference import sdk_reference
from tools.documentation.site import ROOT, SiteFailed, build, gathered

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SETTINGS = ROOT / "tools" / "documentation" / "zensical.toml"


def pages_in(part: Any) -> Iterator[str]:
    """Yield the paths of the pages in a part of the navigation."""
    if isinstance(part, str):
        yield part
    else:
        for one in part.values() if isinstance(part, dict) else part:
            yield from pages_in(one)


def test_every_page_that_is_gathered_has_its_place_in_the_navigation():
    """A page outside of it is found by nobody who does not search for it."""
    made = {"reference/api.md", "reference/sdk.md"}
    settings = tomllib.loads(SETTINGS.read_text())
    assert (
        set(pages_in(settings["project"]["nav"]))
        == {path for path in gathered() if path.endswith(".md")} | made
    )


def test_every_page_of_the_documentation_is_gathered():
    """The README leads to all of them."""
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")} <= set(gathered())


def test_every_route_and_every_schema_is_in_the_reference():
    """The reference is made from the document that generators of clients read."""
    reference, document = api_reference(), api_document()
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"### `{method.upper()} {path}`\n" in reference
    for schema in document["components"]["schemas"]:
        assert f"### {schema}\n" in reference


def test_the_fields_of_every_form_are_in_the_reference():
    """A voice is registered with a form, and its fields have no schema of their own to be looked up in."""
    sections = dict(part.partition("`\n")[::2] for part in api_reference().split("### `"))
    bodies = {
        f"{method.upper()} {path}": operation["requestBody"]["content"]
        for path, methods in api_document()["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    }
    forms = {
        route: body["multipart/form-data"]["schema"]
        for route, body in bodies.items()
        if "multipart/form-data" in body
    }
    assert "POST /v1/audio/voices" in forms
    for route, form in forms.items():
        missing = [name for name in form["properties"] if f"| `{name}`" not in sections[route]]
        assert missing == [], route
        assert "Exactly one of" in sections[route]


def test_every_public_name_of_the_sdk_is_in_the_reference():
    """What can be imported is documented."""
    reference = sdk_reference()
    assert [name for name in speaker_registry.__all__ if f".{name}\n" not in reference] == []


@pytest.mark.parametrize("client", [speaker_registry.RegistryClient, speaker_registry.AsyncRegistryClient])
def test_the_reference_lists_all_methods_of_a_client_and_begins_with_voices(client: type):
    """They come from several classes, and a reader looks for them under the client, `register` first."""
    block = sdk_reference().split(f".{client.__name__}\n")[1].partition("\n\n")[0]
    listed: list[str] = yaml.safe_load(block)["options"]["members"]
    methods = {name for name in dir(client) if not name.startswith("_")}
    assert listed[0] == "register"
    assert methods <= set(listed)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ('<a href="gone.html">', "index.html links to gone.html, which is no file of the site."),
        ('<a href="#gone">', "index.html links to #gone, but that page has no such anchor."),
        (
            '<a href="other.html#gone">',
            "index.html links to other.html#gone, but that page has no such anchor.",
        ),
        ('<img src="gone.png">', "index.html links to gone.png, which is no file of the site."),
        (
            '<script src="https://cdn.example/a.js"></script>',
            "index.html loads https://cdn.example/a.js, which is on another server.",
        ),
        (
            '<link rel="stylesheet" href="//cdn.example/a.css">',
            "index.html loads //cdn.example/a.css, which is on another server.",
        ),
        (
            '<a href="style.css">',
            "style.css loads https://cdn.example/font.woff2, which is on another server.",
        ),
    ],
)
def test_a_link_to_nowhere_and_a_load_from_elsewhere_are_faults(page: str, fault: str, tmp_path: Path):
    """The site has to work on a machine without a network, and links have to lead where they promise."""
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "other.html").write_text('<h1 id="here"></h1>')
    if "style.css" in page:
        (tmp_path / "style.css").write_text("@font-face{src:url(https://cdn.example/font.woff2)}")
    assert faults_of(tmp_path) == [fault]


def test_links_that_arrive_are_no_faults(tmp_path: Path):
    """Readers may follow a link to another site, which nothing of this one depends on."""
    (tmp_path / "other.html").write_text('<h1 id="here"></h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other.html#here"></a><a href="#"></a><a href="https://elsewhere.example/gone"></a>'
    )
    assert faults_of(tmp_path) == []


def test_only_pictures_of_the_present_pages_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A picture of former pages would show readers what they cannot find."""
    monkeypatch.setattr(screenshots, "PICTURES", tmp_path / "taken")
    current, former, unknown = list(screenshots.SHOWN)[:3]
    (tmp_path / "taken").mkdir()
    for name in (current, former, unknown):
        (tmp_path / "taken" / f"{name}.png").write_bytes(name.encode())
    screenshots.note_taken(tmp_path / "taken" / f"{current}.png")
    (tmp_path / "taken" / f"{former}.shows").write_text("0" * 64)
    page = tmp_path / "pages" / "docs" / "dashboard.md"
    page.parent.mkdir(parents=True)
    shutil.copyfile(ROOT / "docs" / "dashboard.md", page)
    screenshots.add_pictures(tmp_path / "pages")
    assert page.read_text().count("](pictures/") == 1
    assert (page.parent / "pictures" / f"{current}.png").read_bytes() == current.encode()
    assert screenshots.missing() == [name for name in screenshots.SHOWN if name != current]


@pytest.mark.processes
def test_a_page_with_a_broken_link_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The message names the page and the link."""
    (tmp_path / "README.md").write_text("# Title\n\n[a page](gone.md)\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "T"\n')
    monkeypatch.setattr(site_module, "ROOT", tmp_path)
    monkeypatch.setattr(site_module, "_SETTINGS", tmp_path / "zensical.toml")
    (tmp_path / "zensical.toml").write_text(
        '[project]\nsite_name = "T"\ndocs_dir = "pages"\nsite_dir = "site"\n[project.theme]\nfont = false\n'
    )
    with pytest.raises(SiteFailed, match=r"README.md:3"):
        build(tmp_path / "out")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("documentation") / "built")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # In a container for tests there is no user for Chromium's sandbox. Only our own pages are loaded.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.processes
def test_the_site_is_built_without_a_warning_or_a_broken_link(site: Path):
    """`build` raises otherwise. The references hold what the generator has made of them."""
    assert "Register a voice from a reference clip" in (site / "reference" / "api.html").read_text()
    assert "A client for one speaker registry." in (site / "reference" / "sdk.html").read_text()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")
def test_pages_opened_as_files_can_be_searched_and_ask_nobody_for_anything(site: Path, browser: Browser):
    """A documentation that is carried to a machine without a network works there as it does here."""
    asked, page = [], browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    for path in ("index.html", "docs/usage.html", "reference/api.html", "reference/sdk.html"):
        page.goto((site / path).as_uri(), wait_until="networkidle")
        expect(page.locator("article h1")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("fingerprint")
    expect(page.get_by_role("link", name="fingerprint").first).to_be_visible(timeout=20_000)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
