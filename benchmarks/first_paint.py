"""Measures when Chromium first paints each page for people, beside a static page of one line.

All come over loopback, in turn, each in a new tab of a browser that has the style and script in its cache, as
every page but the very first one has them. Environment: `PAGES_VOICES`, `PAINT_TIMES`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median

import httpx
from playwright.sync_api import BrowserContext

from benchmarks.pages import ADDRESSES, MANY, furnished
from services.registry_api.pages.sessions import COOKIE
from services.registry_api.protocol.routing import PAGES
from tests.integration.api.browser import WIDE, chromium

TIMES = int(os.environ.get("PAINT_TIMES", "5"))
GOAL_MS = 300
_FIRST_PAINT = """new Promise(resolve => new PerformanceObserver(() => {
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    if (paint) resolve(paint.startTime);
}).observe({type: "paint", buffered: true}))"""
_STATIC = b"<!doctype html><title>static</title><link rel=icon href=data:,><p>One line."


def main() -> bool:
    """Print the table. Returns whether every page was painted in time."""
    with furnished() as (_, _, http), _static_page() as static, chromium() as browser:
        context = browser.new_context(viewport=WIDE)
        origin = str(http.base_url).rstrip("/")
        context.add_cookies([{"name": COOKIE, "value": http.cookies[COOKIE], "url": origin}])
        urls = {"a static page": static} | {
            name: f"{origin}{PAGES}{path}" for name, path in ADDRESSES.items()
        }
        painted: dict[str, list[float]] = {name: [] for name in urls}
        for number in range(TIMES + 1):
            for name, url in urls.items():
                milliseconds = _first_paint(context, url)
                if number:  # the first round fills caches
                    painted[name].append(milliseconds)
    print(f"| page, {MANY:,} voices | first paint, ms | slowest of {TIMES} | of {GOAL_MS} ms |")
    print("|---|---|---|---|")
    for name, all_of_it in painted.items():
        print(
            f"| {name} | {median(all_of_it):.0f} | {max(all_of_it):.0f} | {median(all_of_it) / GOAL_MS:.2f} |"
        )
    return max(median(one) for one in painted.values()) <= GOAL_MS


def _first_paint(context: BrowserContext, url: str) -> float:
    """Return the milliseconds from the navigation's start to the first contentful paint, as Chromium says."""
    with context.new_page() as page:
        answer = page.goto(url)
        assert answer is not None
        assert answer.ok
        assert page.url == url, f"{url} led to {page.url}"
        return float(page.evaluate(_FIRST_PAINT))


@contextmanager
def _static_page() -> Iterator[str]:
    """Serve one line of HTML and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(httpx.codes.OK)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(_STATIC)))
            self.end_headers()
            self.wfile.write(_STATIC)

        def log_message(self, *_: object) -> None:
            """Log nothing, because the table is the output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


if __name__ == "__main__":
    main()
