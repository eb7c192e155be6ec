"""`python -m services.embedded run|demo`: the registry on one machine. See `make run` and `make demo`."""

import os
import signal
import sys


def main() -> int:
    """Run a command and return the exit status."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    # The import takes a while, in which Ctrl-C would otherwise print a traceback of some library.
    from services.embedded import commands  # noqa: PLC0415

    return commands.main(sys.argv[1:])


def _leave(*_: object) -> None:
    """End the process at once. Used while nothing has been started that needs to be stopped."""
    os.write(sys.stderr.fileno(), b"\nstopped\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
