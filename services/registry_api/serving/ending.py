"""Ends the process of a server that has stopped, even if some of its threads still wait for the bucket."""

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn

LAST_SECONDS = 3.0
"""Threads that were told to stop may finish their work for this long."""


def end_process(status: int) -> NoReturn:
    """End the process at once, whatever its threads do. Its log lines are written first.

    Python would wait for the threads of canceled requests, and of housekeeping, until a bucket that does not
    answer has used up all of its retries. A supervisor would kill the process before.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
