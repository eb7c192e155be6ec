"""The command line `speaker-registry`.

Everything else of it is loaded by `main`, so that Ctrl-C meanwhile ends it as silently as later.
"""

import sys
from collections.abc import Sequence

_INTERRUPTED = 130
"""Same as `command.INTERRUPTED`, which cannot be loaded yet."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        from speaker_registry.cli import program  # noqa: PLC0415  see above

        return program.main(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return _INTERRUPTED
