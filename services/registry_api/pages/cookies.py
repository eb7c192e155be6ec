"""The cookies of pages: their names, the headers that set them, and finding them among those of other
applications. This module knows nothing of what is in them.
"""

import re

from starlette.requests import Request

_SEALED = re.compile(r"[A-Za-z0-9_.=-]+")
"""Sealed data consist of these characters."""


def sent_cookie(request: Request, name: str) -> str | None:
    """Return the value of a cookie of ours, or None if the browser sent none.

    Browsers also send the cookies of other applications on this host, with values that no standard allows.
    Among cookies of one name, the one with the longest path comes first. Ours have longer paths than `/`.
    """
    wanted = _full_name(request, name)
    pairs = (one.partition("=") for one in ";".join(request.headers.getlist("cookie")).split(";"))
    values = (value.strip() for found, _, value in pairs if found.strip() == wanted)
    return next((value for value in values if _SEALED.fullmatch(value)), None)


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
