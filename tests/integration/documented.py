"""Reads the pages of the documentation and the fenced examples in them. Runs nothing."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")))


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(language: str, page: str) -> list[str]:
    """Return the examples of a page that are fenced as `language`, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
