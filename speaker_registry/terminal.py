"""Output on terminals: aligned tables, colour for warnings, escaping of characters that control a terminal,
and standard output that cannot be written.
"""

import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO


def printable(text: object) -> str:
    """Escape every character that a terminal would interpret instead of show."""
    return "".join(map(_shown, str(text)))


def _shown(character: str) -> str:
    # Unprintable characters can move the cursor, reverse text or start a new line; spaces cannot.
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def highlighted(text: str, stream: TextIO) -> str:
    """Return the text in bold yellow if the stream is a terminal whose user wants colours (NO_COLOR)."""
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[1;33m{text}\x1b[0m"


def discard_output() -> None:
    """Discard what is left for standard output, which cannot be written. Python flushes it when it exits,
    which would fail again, with a traceback.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format rows as left-aligned columns, two spaces apart. The header is included even if there are no
    rows.
    """
    lines = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(columns, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def field_lines(pairs: Sequence[tuple[str, object]]) -> str:
    """Format one name and value per line. None is shown as a dash."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(
        f"{name:<{width}}  {'-' if value is None else printable(value)}" for name, value in pairs
    )


def columns(text: str) -> int:
    """Count the terminal columns of a text. CJK characters take two columns, combining marks take none."""
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - columns(cell)) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()
