"""Renders the templates of pages. This module knows the caller's rights, but no operations.

Jinja escapes all text that people or programs sent. Characters that would change how the text around them
looks, such as bidirectional controls, are shown by their numbers.
"""

import hashlib
import re
import string
import time
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from services.registry_api.access import rules
from services.registry_api.access.rules import access_of
from services.registry_api.protocol.callers import Caller
from services.registry_api.protocol.routing import PAGES, sent_path
from speaker_registry import __version__

HERE = Path(__file__).parent
ASSETS = {path.name: path.read_bytes() for path in sorted((HERE / "assets").iterdir())}
VERSIONS = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in ASSETS.items()}
_RIGHTS = {
    "see_voices": rules.VOICES_READ,
    "register": rules.VOICES_WRITE,
    "move": rules.VOICES_WRITE,
    "edit": rules.VOICES_WRITE,
    "delete": rules.VOICES_DELETE,
    "listen": rules.AUDIO_READ,
    "download": rules.ARTIFACTS_READ,
    "see_jobs": rules.JOBS_READ,
    "extract": rules.JOBS_WRITE,
    "cancel": rules.JOBS_CANCEL,
    "manage_keys": rules.ADMIN,
}
"""Maps each action of a page to the rule of the route that performs it. No page offers an action that would
be refused.
"""
_TITLES = {
    400: "That cannot be read",
    401: "Sign in again",
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    412: "Changed meanwhile",
    413: "Too large",
    415: "Not an audio file",
    422: "Not accepted",
    429: "Too many requests",
    503: "Not available now",
}
_CODE = re.compile(r"`([^`]+)`")
_DOT_SEGMENTS = r"[^?#]*/(\.|%2[eE]){1,2}([/?#]|\Z)"
"""A path that browsers shorten: `/dashboard/../x` leads to `/x`."""
_OWN_PAGE = re.compile(rf"(?!{_DOT_SEGMENTS}){PAGES}([/?][!-\[\]-~]*)?")
"""An address of these pages: printable ASCII without a backslash, which browsers read as a slash, and without
dot segments, which lead out of these pages.
"""
MAX_NEXT = 1024
"""Longest address to which signing in leads back. A cookie holds it while a provider is asked."""
SAFE_METHODS = frozenset({"GET", "HEAD"})
_CONTROL_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_KEPT_CONTROLS = frozenset("\n\t\r\u200c\u200d")
"""Line breaks, and the joiners that emoji and several scripts need."""


LIVE = "live"
"""The id of the part of a page that is fetched again and again, and the block of its template."""


def rights_of(caller: Caller, *, keys_required: bool) -> dict[str, bool]:
    """Return what pages may offer to a caller."""
    rights = {name: not caller.scopes.isdisjoint(rule.scopes) for name, rule in _RIGHTS.items()}
    rights["manage_keys"] = rights["manage_keys"] and keys_required
    return rights


def page(
    request: Request, template: str, *, token: str, status: int = 200, region: bool = False, **values: Any
) -> Response:
    """Render a page for the caller of a request.

    Args:
        token: the session's token against forged forms.
        region: render the live region of the page alone.
        values: the variables of the template.
    """
    access, caller = access_of(request), request.scope.get("caller")
    shared = {
        "caller": caller,
        "namespace": request.scope.get("namespace"),
        "signed_in": access.required and caller is not None,
        "may": rights_of(caller, keys_required=access.required) if caller else {},
        "here": request.url.path,
        "address": own_address(request),
        "token": token,
        "now": time.time(),
    }
    source, variables = _environment().get_template(template), {**shared, **values}
    if region:
        content = "".join(source.blocks[LIVE](source.new_context(variables)))
    else:
        content = source.render(variables)
    return HTMLResponse(content, status_code=status, headers={"Cache-Control": "no-store"})


def own_address(request: Request) -> str:
    """Return the path and query of a request, encoded as the browser has sent them."""
    path = quote(sent_path(request.scope), safe=string.punctuation)
    return path + (f"?{request.url.query}" if request.url.query else "")


def own_page(following: str) -> str:
    """Return the address if it is that of one of these pages, else that of the overview. It is never on
    another site.
    """
    return following if _OWN_PAGE.fullmatch(following) else PAGES


def named_page(request: Request, header: str) -> str | None:
    """Return the address of the page whose URL a header of a request has. None stands for the overview and
    for all that is none of these pages.
    """
    try:
        sent = urlsplit(request.headers.get(header, ""))
    except ValueError:
        return None
    if sent.netloc != request.headers.get("host"):
        return None
    following = own_page(sent.path + (f"?{sent.query}" if sent.query else ""))
    return following if following != PAGES else None


def page_that_opens(request: Request, address: str) -> Response:
    """Return a page that makes the browser open another of these pages at once.

    A redirect is not enough: browsers attribute the request for its target to the other site.
    """
    return page(request, "leading.html", token="", following=address)


def failure_page(request: Request, status: int, message: str, *, token: str, partial: bool) -> Response:
    """Show an error, as a page or in the area for errors of the page on the screen."""
    title = _TITLES.get(status, "Something went wrong")
    values: dict[str, Any] = {
        "title": title,
        "message": message,
        "request_id": request.scope.get("request_id"),
        "back": None if request.method in SAFE_METHODS else named_page(request, "referer"),
        "failed_with": status,
        "asked": request.method in SAFE_METHODS,
        "keys_required": access_of(request).required,
    }
    if not partial:
        return page(request, "failure.html", token=token, status=status, **values)
    response = page(request, "problem.html", token=token, status=status, **values)
    response.headers.update(
        {
            "HX-Retarget": "#problem",
            "HX-Reswap": "innerHTML show:window:top",  # the form may be far below the area for errors
            "HX-Reselect": "#message",
            "HX-Push-Url": "false",
        }
    )
    return response


def asset_url(name: str) -> str:
    """Return an asset's address. It changes with the content, so that browsers may keep the asset."""
    return f"{PAGES}/assets/{name}?v={VERSIONS[name]}"


def visible(text: object) -> Markup:
    """Return text with each invisible or direction-changing character replaced by a mark with its number."""
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return escape(plain)  # nearly all text; examining every character would take most of a page's time
    return Markup("").join(_shown(character) for character in plain)


def _shown(character: str) -> Markup:
    if unicodedata.category(character) not in _CONTROL_CATEGORIES or character in _KEPT_CONTROLS:
        return escape(character)
    name = unicodedata.name(character, "control character")
    return Markup('<span class="control" title="{}">U+{:04X}</span>').format(name, ord(character))


def marked(text: object) -> str:
    """Return the result of `visible` as plain text, for places without HTML elements, such as titles."""
    return visible(text).striptags()


def message(text: object) -> Markup:
    """Return a message of the registry like `visible`, with what it has between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(visible(text))))  # noqa: S704 — `visible` has escaped the text


def given(text: object) -> Markup:
    """Return text of unknown language and direction, which does not change the text around it."""
    return Markup("<bdi>{}</bdi>").format(visible(text))


def ago(moment: float | None) -> Markup:
    """Return a point in time relative to now, with the exact time as its title."""
    if moment is None:
        return Markup("–")
    seconds = time.time() - moment
    return _timed(moment, f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}")


def registered(moment: float) -> Markup:
    """Return the creation time of a version like `ago`. It may lie some seconds ahead, because versions of a
    voice that are registered within one second are dated one second apart.
    """
    return _timed(moment, f"{duration(max(0.0, time.time() - moment))} ago")


def _timed(moment: float, words: str) -> Markup:
    iso = datetime.fromtimestamp(moment, UTC).isoformat()
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, exactly(moment), words)


def exactly(moment: float) -> str:
    """Return a point in time as date and time in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """Return a length of time as a whole number of the largest unit that fits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def measured(seconds: float) -> str:
    """Return a measured length of time. Below ten seconds, it is shown with tenths."""
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def day(moment: float) -> str:
    """Return the day of a point in time, in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%b %-d")


def clock(moment: float) -> str:
    """Return the time of day of a point in time, in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M")


def size(count: int) -> str:
    """Return a number of bytes in a readable unit."""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1024**2 else f"{count / 1024**2:.1f} MiB"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        given=given,
        visible=visible,
        message=message,
        marked=marked,
        ago=ago,
        registered=registered,
        exactly=exactly,
        clock=clock,
        size=size,
        duration=duration,
        measured=measured,
        day=day,
    )
    shared: Mapping[str, Any] = {"asset": asset_url, "root": PAGES, "version": __version__}
    environment.globals.update(shared)
    return environment
