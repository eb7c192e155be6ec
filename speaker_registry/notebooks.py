"""Formatting of values for notebooks. All text is escaped, and characters that would reverse it are spelled
out.
"""

import html
from collections.abc import Iterable, Sequence

from speaker_registry.terminal import printable


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format rows as an HTML table."""
    lines = [_line("th", head), *(_line("td", row) for row in rows)]
    return f"<table><caption>{_shown(caption)}</caption>{''.join(lines)}</table>"


def _line(element: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{element}>{_shown(cell)}</{element}>' for cell in cells)}</tr>"


def _shown(text: object) -> str:
    return html.escape(printable(text))
