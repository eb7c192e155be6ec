"""Uses the pages as a browser without scripts does: keeps the cookie, follows redirects and sends forms, and
finds the elements and the text of a page.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Self

import httpx

from tests.integration.api.registry import Registry

TOKEN = re.compile(r'name="token" value="([0-9a-f]{64})"')
TEXTS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7*7 }} {% raw %} <b>bold</b>",
    "abc\u202edef\u2066ghi\u200b",
    "' onmouseover='alert(1)",
    "</textarea></style><svg onload=alert(1)>",
    "<ä" * 1365,
]
"""Texts of strangers: HTML, scripts, templates, controls of direction, and 4 KB of what begins an element."""


class Visitor:
    """One person at the pages of a registry."""

    def __init__(self, registry: Registry, key: str | None = None) -> None:
        self.http = httpx.Client(base_url=registry.url, follow_redirects=True, timeout=30)
        if key is not None:
            answer = self.sign_in(key)
            assert answer.url.path == "/dashboard", answer.text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def get(self, path: str = "", **options: Any) -> httpx.Response:
        return self.http.get(f"/dashboard{path}", **options)

    def token(self) -> str:
        """Return the token that the forms of this session carry."""
        for path in ("/login", "/voices/@new", "/keys", ""):
            if found := TOKEN.search(self.get(path).text):
                return found[1]
        raise AssertionError("no page has a form")

    def post(self, path: str, data: dict[str, str] | None = None, **options: Any) -> httpx.Response:
        token = self.token()
        return self.http.post(f"/dashboard{path}", data={"token": token, **(data or {})}, **options)

    def sign_in(self, key: str, following: str = "") -> httpx.Response:
        return self.post("/login", {"key": key, "next": following})

    def register(self, name: str, clip: bytes | Path, **fields: str) -> httpx.Response:
        content = clip if isinstance(clip, bytes) else clip.read_bytes()
        files = {"audio_sample": ("clip.wav", content, "audio/wav")}
        return self.post("/voices", {"name": name, "consent": "cons_1", **fields}, files=files)


class Page(HTMLParser):
    """A page as a browser sees it: its elements, and its text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.live: list[dict[str, str | None]] = []
        """The elements of the part that is fetched again and again which can have the focus."""
        self._live_tags: list[str] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if self._live_tags and tag in {"a", "button", "summary"}:
            self.live.append({"tag": tag, **attributes})
        if tag in {"div", "section"} and (self._live_tags or attributes.get("id") == "live"):
            self._live_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._live_tags and tag == self._live_tags[-1]:
            self._live_tags.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


def strange_elements(page: Page) -> Iterator[str]:
    """Yield the elements that none of our templates can have made."""
    for tag, attributes in page.elements:
        address = attributes.get("href") or attributes.get("src") or attributes.get("action") or "/"
        strange = tag in {"b", "iframe", "style", "object"} or (tag == "script" and not attributes.get("src"))
        strange |= any(name.startswith("on") or name == "style" for name in attributes)
        if strange or not address.startswith(("/", "#")) or address.startswith("//"):
            yield f"{tag} {attributes}"
