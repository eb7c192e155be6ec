"""Puts pictures of the dashboard into the page about it. The browser tests take them and leave them in
`build/screenshots`, with a note of the pages that they show.

A picture of pages that have changed since is left out, so no picture on the site is out of date.
"""

import hashlib
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "screenshots"
TAKEN_BY = "tests/integration/api/test_pages_to_the_eye.py"
_SOURCES = (ROOT / "services/registry_api/pages", ROOT / "tests/integration/api/furnished.py")
"""What the pictures show: the pages, and the data in them."""
_PAGE = Path("docs") / "dashboard.md"
_MARK = "<!-- pictures: put here by tools/documentation/screenshots.py -->\n"
SHOWN = {
    "overview-wide-light": "The overview: what needs attention, jobs as charts, and the profiles",
    "voices-wide-light": "The list of voices, with search and filters",
    "voice-wide-light": "One voice: player, pictures of the clip, artifacts and versions",
    "voice-compared-wide-light": "Two versions of a voice, compared",
    "new-voice-wide-light": "The form that registers a voice with a file or the microphone",
    "jobs-wide-light": "Jobs as they run, with the reason why one waits or failed",
    "profiles-wide-light": "Profiles with their fingerprints, licences and workers",
    "keys-wide-light": "API keys, their scopes and their last use",
    "overview-wide-dark": "The overview in dark colours, which follow the system's choice",
    "voice-phone-light": "A voice on a phone",
}
"""The pictures on the site -> what they show, for readers and screen readers."""


def note_taken(picture: Path) -> None:
    """Note beside a picture which pages it shows."""
    _note_of(picture).write_text(_digest_of_pages())


def add_pictures(pages: Path) -> None:
    """Copy the current pictures beside the page about the dashboard, and show them in it."""
    left_out = missing()
    current = [name for name in SHOWN if name not in left_out]
    page = pages / _PAGE
    if current and page.exists():
        folder = page.parent / "pictures"
        folder.mkdir()
        for name in current:
            shutil.copyfile(PICTURES / f"{name}.png", folder / f"{name}.png")
        page.write_text(page.read_text().replace(_MARK, "\n".join(_section(current))))


def missing() -> list[str]:
    """Return the names of the pictures that were not taken, or that show former pages."""
    return [name for name in SHOWN if not _is_current(PICTURES / f"{name}.png")]


def _section(names: list[str]) -> Iterator[str]:
    yield "## Pictures\n"
    for name in names:
        yield f"{SHOWN[name]}:\n\n![{SHOWN[name]}](pictures/{name}.png)\n"


def _is_current(picture: Path) -> bool:
    note = _note_of(picture)
    return picture.exists() and note.exists() and note.read_text() == _digest_of_pages()


def _note_of(picture: Path) -> Path:
    return picture.with_suffix(".shows")


@cache
def _digest_of_pages() -> str:
    digest = hashlib.sha256()
    for path in sorted(file for source in _SOURCES for file in _files_of(source)):
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _files_of(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
    else:
        yield from (path for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc")
