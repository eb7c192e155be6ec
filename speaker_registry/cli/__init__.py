"""The command line `speaker-registry`.

`main` imports everything else, so that Ctrl-C during the import ends the command as silently as Ctrl-C later
does. Python imports this module and `speaker_registry/__init__.py` before `main` runs, so both import only
what Python itself has loaded.
"""

import sys

TYPE_CHECKING = False  # not from `typing`, which takes milliseconds to load
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
"""The exit code after Ctrl-C. The others are in `command`, which `main` has not imported at first."""


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command and return its exit code."""
    try:
        from speaker_registry.cli import program  # noqa: PLC0415  see above

        return program.main(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return INTERRUPTED
