"""The errors that the SDK offers are errors that a registry answers."""

import re
from pathlib import Path

from speaker_registry import errors

ROOT = Path(__file__).parents[2]


def test_every_error_of_the_sdk_is_used():
    """A program must not be written around an error that never comes."""
    files = [path for folder in ("services", "speaker_registry") for path in (ROOT / folder).rglob("*.py")]
    code = "\n".join(path.read_text() for path in files if path != Path(errors.__file__))
    base, defined = errors.SpeakerRegistryError, vars(errors).values()
    known = [one for one in defined if isinstance(one, type) and issubclass(one, base)]
    leaves = [one.__name__ for one in known if not one.__subclasses__()]
    assert [name for name in leaves if not re.search(rf"\b{name}\b", code)] == []
