"""Text for people at a terminal: aligned, and harmless whatever a name holds. Knows no registry."""

import unicodedata
from collections.abc import Iterable, Sequence


def printable(text: object) -> str:
    """With escapes in place of what a terminal would obey instead of show."""
    return "".join(map(_shown, str(text)))


def _shown(character: str) -> str:
    # What Python calls unprintable can move a cursor, turn text around or start a line; blanks cannot.
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Left-aligned columns, two blanks apart; a header even when there are no rows."""
    lines = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(columns, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def field_lines(pairs: Sequence[tuple[str, object]]) -> str:
    """A name and a value on each line; None is shown as a dash."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(
        f"{name:<{width}}  {'-' if value is None else printable(value)}" for name, value in pairs
    )


def columns(text: str) -> int:
    """Columns that a text takes: CJK two each, combining marks none."""
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - columns(cell)) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()
