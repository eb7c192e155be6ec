"""The sample voice: a clip that comes with the package, so that a new registry can be tried at once.

A speech synthesiser made the clip, and no real person speaks. `examples/clips/README.md` in the repository
names the program and its licence.
"""

from collections.abc import Iterator
from pathlib import Path

CONSENT = "Synthesised speech. No real person speaks."
_HERE = Path(__file__).parent
_MAX_NAMES = 20


def clip() -> bytes:
    """Return the clip, a FLAC file."""
    return (_HERE / "wren.flac").read_bytes()


def transcript() -> str:
    return (_HERE / "wren.txt").read_text(encoding="utf-8").strip()


def names() -> Iterator[str]:
    """Yield the names for the voice, of which the first free one is taken."""
    yield "Sample"
    yield from (f"Sample {number}" for number in range(2, _MAX_NAMES + 1))
