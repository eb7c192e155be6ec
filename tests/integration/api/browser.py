"""Opens pages in a real browser: Chromium as the distribution packages it, driven by Playwright."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tests.integration.api.access import BOOTSTRAP

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NO_CHROMIUM = "no Chromium is installed: apt-get install chromium"
WIDE: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 375, "height": 720}
PATIENCE_MS = 20_000
"""However busy the machine is, what a test expects has this long to come true."""
_AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
Open = Callable[..., Page]


@contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # In a container for tests there is no user for Chromium's sandbox. Only our own pages are loaded.
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--mute-audio", *arguments]
        )
        yield browser
        browser.close()


@contextmanager
def opener(browser: Browser, url: str) -> Iterator[Open]:
    """Yield a function that opens a page of the registry at this URL in a browser of its own, signed in
    unless `key` is None.

    Fails at the end if a page reported an error, such as code that the policy of the pages forbids.
    """
    faults = list[str]()
    with ExitStack() as stack:

        def open_page(path: str = "", *, key: str | None = str(BOOTSTRAP), **options: Any) -> Page:
            context = browser.new_context(base_url=url, **options)
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "console", lambda said: faults.append(said.text) if "Security Policy" in said.text else None
            )
            page.goto(f"/dashboard{path}")
            if key is not None:
                sign_in(page, key)
            return page

        yield open_page
    assert not faults


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_load_state()


def grave_faults(page: Page, rules: list[str] | None = None) -> list[str]:
    """Return the serious and critical faults that axe-core finds on a page, by these rules or by all."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_AXE)
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{fault['id']}: {node['html'][:200]} {node['failureSummary']}"
        for fault in found["violations"]
        if fault["impact"] in {"serious", "critical"}
        for node in fault["nodes"]
    ]
