"""The cookies of pages: their names, the headers that set them, and finding them among those of other
applications. This module knows nothing of what is in them.
"""

import re
from collections.abc import Iterator

from starlette.requests import Request

_SAFE = re.compile(r"[A-Za-z0-9_.=-]+")
"""Sealed data and the names of our cookies consist of these characters."""


def sent_cookie(request: Request, name: str) -> str | None:
    """Return the value of a cookie of ours, or None if the browser sent none.

    Browsers also send the cookies of other applications on this host, with values that no standard allows.
    Among cookies of one name, the one with the longest path comes first. Ours have longer paths than `/`.
    """
    wanted = _full_name(request, name)
    return next((value for found, value in _sent(request) if found == wanted), None)


def sent_cookies(request: Request, beginning: str) -> dict[str, str]:
    """Return the cookies of ours whose names begin with a text, by name. Browsers send the oldest first
    (RFC 6265, section 5.4).
    """
    start = _full_name(request, "")
    sent = ((found.removeprefix(start), value) for found, value in _sent(request) if found.startswith(start))
    # A name goes back into a Set-Cookie header.
    return {name: value for name, value in sent if name.startswith(beginning) and _SAFE.fullmatch(name)}


def _sent(request: Request) -> Iterator[tuple[str, str]]:
    """Return the names and values of the cookies that may be ours, in their order."""
    pairs = (one.partition("=") for one in ";".join(request.headers.getlist("cookie")).split(";"))
    named = ((name.strip(), value.strip()) for name, _, value in pairs)
    return ((name, value) for name, value in named if _SAFE.fullmatch(value))


def cookie_header(request: Request, name: str, value: str, *, path: str, seconds: int, same_site: str) -> str:
    """Return the header that makes a browser keep a cookie which no script can read."""
    secure = "; Secure" if request.url.scheme == "https" else ""
    cookie = f"{_full_name(request, name)}={value}"
    return f"{cookie}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}"


def _full_name(request: Request, name: str) -> str:
    """Return a cookie's name. Browsers accept a name that begins with `__Secure-` only over HTTPS, so that an
    attacker who answers for the registry's host name over HTTP cannot plant a session.
    """
    return f"__Secure-{name}" if request.url.scheme == "https" else name
