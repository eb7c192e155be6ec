"""Uses the pages as a browser without scripts does: keeps the cookie, follows redirects and sends forms."""

import re
from pathlib import Path
from typing import Any, Self

import httpx

from tests.integration.api.registry import Registry

TOKEN = re.compile(r'name="token" value="([0-9a-f]{64})"')


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
