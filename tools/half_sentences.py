"""Lists docstrings that are half sentences: `python -m tools.half_sentences [PATH ...]`.

A docstring is shown without the name that it describes, in an editor's pop-up or in a search result. One that
begins with a preposition, a relative pronoun or a conjunction completes the name above it and says little
without it. The texts below attributes, which documentation tools show like docstrings, count as well.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CHECKED = ("services", "speaker_registry", "tests")

_OPENINGS = """
about above across after against along although among and around as at because before behind below beneath
beside besides between beyond but by despite down during else except for from how if in inside instead into
like near nor of off on onto or out outside over past per since so than that then though through till to
toward under unless until up upon via what whatever when where whereas wherever whether which whichever
while who whoever whom whose why with within without yet
"""
"""Words that open half sentences. Some of them also open whole ones, so a small share of hits is expected."""


class Docstring(NamedTuple):
    """One docstring, or the text below an attribute."""

    path: Path
    line: int
    text: str

    @property
    def is_half_a_sentence(self) -> bool:
        """Return whether the first word is one that completes the name above."""
        first = self.text.split(maxsplit=1)[0].strip("\"'`*(,:;.")
        return first.lower() in _OPENINGS.split()


def docstrings(paths: Sequence[Path]) -> Iterator[Docstring]:
    """Yield every docstring of the Python files below `paths`."""
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                body = getattr(node, "body", None)
                for statement in body if isinstance(body, list) else ():
                    match statement:
                        case ast.Expr(value=ast.Constant(value=str(text))) if text.strip():
                            yield Docstring(file, statement.lineno, text.strip())


def main(arguments: Sequence[str]) -> int:
    """Print each half sentence with its file and line, and their share. Returns the exit status 0."""
    found = list(docstrings([Path(one) for one in arguments] or [ROOT / name for name in CHECKED]))
    halves = [one for one in found if one.is_half_a_sentence]
    for one in halves:
        print(f"{one.path}:{one.line}: {one.text.splitlines()[0]}")
    print(f"{len(halves)} of {len(found)} docstrings are half sentences ({len(halves) / len(found):.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
