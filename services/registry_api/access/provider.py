"""Requests to an OpenID provider: bounded in time and size, and never to plain http on another machine."""

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

_READ_TIMEOUT_SECONDS = 5.0
"""Time limit of each step of the provider's answer."""
_ANSWER_SECONDS = 10.0
"""Time limit of the whole answer of the provider."""
_MAX_ANSWER_BYTES = 256 * 1024
"""Largest accepted answer of the provider."""


def provider_client() -> httpx.Client:
    return httpx.Client(timeout=_READ_TIMEOUT_SECONDS)


def fetch_json(
    http: httpx.Client,
    url: str,
    form: Mapping[str, str] | None = None,
    auth: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Send a GET request to the provider, or a POST with `form`, and return the JSON object of its answer.

    Raises:
        httpx.HTTPError: the provider refuses, or does not answer.
        ValueError: its answer is too long, too slow or not a JSON object.
    """
    method = "GET" if form is None else "POST"
    deadline = time.monotonic() + _ANSWER_SECONDS
    with http.stream(method, url, data=form, auth=auth) as response:
        response.raise_for_status()
        body = b""
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _MAX_ANSWER_BYTES:
                raise ValueError(f"{url} has more than {_MAX_ANSWER_BYTES} bytes")
            if time.monotonic() > deadline:
                raise ValueError(f"{url} takes longer than {_ANSWER_SECONDS:.0f} s")
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError(f"{url} holds no JSON object")
    return document


def require_https(url: str, issuer: str) -> str:
    """Return a URL of the provider. Raises ValueError if it is plain http although the issuer is https."""
    if urlsplit(url).scheme not in {"https", urlsplit(issuer).scheme}:
        raise ValueError(f"its keys lie at {ascii(url)[:200]}, which is not https")
    return url
