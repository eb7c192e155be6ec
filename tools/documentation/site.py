"""Gathers the pages of the documentation in one folder and builds the site from them.

The pages keep their paths, so that the links between them work in the repository and on the site alike.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.documentation.api_reference import api_reference
from tools.documentation.links import faults_of
from tools.documentation.screenshots import add_pictures
from tools.documentation.sdk_reference import sdk_reference

ROOT = Path(__file__).parents[2]
_SETTINGS = Path(__file__).with_name("zensical.toml")
_ASSETS = Path(__file__).with_name("assets")
_FIRST = "README.md"
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


class SiteFailed(Exception):
    """The site cannot be built as it should be. The message lists what is wrong."""


def build(folder: Path) -> Path:
    """Build the site in this folder, whose former content is removed, and return where its pages are.

    Raises:
        SiteFailed: the generator warns of something, a link leads nowhere, or a page loads from elsewhere.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    for path in gathered():
        (pages / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, pages / path)
    (pages / "reference").mkdir()
    (pages / "reference" / "api.md").write_text(api_reference())
    (pages / "reference" / "sdk.md").write_text(sdk_reference())
    add_pictures(pages)
    shutil.copytree(_ASSETS, pages / _ASSETS.name)
    shutil.copyfile(_SETTINGS, folder / _SETTINGS.name)
    _generate(folder)
    if faults := faults_of(folder / "site"):
        raise SiteFailed("\n".join(faults))
    return folder / "site"


def gathered() -> list[str]:
    """Return the paths of the README and of every file that can be reached from it by links."""
    found, waiting = set[str](), [_FIRST]
    while waiting:
        if (path := waiting.pop()) not in found:
            found.add(path)
            waiting += _linked_from(path)
    return sorted(found)


def _linked_from(path: str) -> Iterator[str]:
    if path.endswith(".md"):
        for link in _LINK.findall((ROOT / path).read_text()):
            target = ((ROOT / path).parent / link).resolve()
            # A link to a missing file is reported later, when the links of the site are followed.
            if target.is_file() and target.is_relative_to(ROOT):
                yield str(target.relative_to(ROOT))


def _generate(folder: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", _SETTINGS.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SiteFailed(f"{done.stdout}\n{done.stderr}")
