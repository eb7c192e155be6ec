"""A system that starts no more threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MORE_THAN_ANY_ADDRESS = 2**50


@contextmanager
def no_more_threads() -> Iterator[None]:
    """Let the system refuse this process every further thread, because there is no room for its stack."""
    threading.stack_size(_MORE_THAN_ANY_ADDRESS)
    try:
        yield
    finally:
        threading.stack_size(0)
