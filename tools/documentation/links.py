"""Follows the links of a built site: each must lead to a file, and to an anchor that is in it, and nothing
may be loaded from another server. Links that a reader clicks may lead to other sites, and are not followed.
"""

import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
_LOADED_BY_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")


class _Page(HTMLParser):
    """The links, the loaded addresses and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if (tag, name) in _LOADED:
                self.loaded.append(value)
            elif name == "href":
                self.links.append(value)
            elif name in {"id", "name"}:
                self.anchors.add(value)


def faults_of(site: Path) -> list[str]:
    """Return a sentence for each broken link of the site, and for each load from elsewhere."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    faults = [fault for path in pages if path.name != "404.html" for fault in _broken(site, path, pages)]
    return sorted({*faults, *_outside(site, pages)})


def _broken(site: Path, path: Path, pages: Mapping[Path, _Page]) -> Iterator[str]:
    for link in [*pages[path].links, *pages[path].loaded]:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        where = f"{path.relative_to(site)} links to {link}"
        if not target.is_file():
            yield f"{where}, which is no file of the site."
        elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{where}, but that page has no such anchor."


def _outside(site: Path, pages: Mapping[Path, _Page]) -> Iterator[str]:
    for path, page in pages.items():
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{path.relative_to(site)} loads {address}, which is on another server."
    for path in site.rglob("*.css"):
        for address in _LOADED_BY_STYLES.findall(path.read_text()):
            yield f"{path.relative_to(site)} loads {address}, which is on another server."
