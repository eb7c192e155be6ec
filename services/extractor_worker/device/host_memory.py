"""How this process fetches memory from the system, and gives it back. Knows glibc and no model.

Encoders on a CPU allocate and free hundreds of MiB in every layer. By default each of these is a mapping of
its own, whose pages the system has to find and zero anew: half of the time goes there. Elsewhere than on
glibc all of this is without effect.
"""

import ctypes
from pathlib import Path

SURPLUS_BYTES = 2 * 2**30
"""Freed memory that is kept at most. Clips of another length leave gaps in it, so without a bound it grows to
several times what any clip needs."""
_TRIM_THRESHOLD, _MAPPINGS_AT_MOST = -1, -4
"""Parameters of glibc's mallopt(3)."""
_NEVER, _NONE = -1, 0
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

_libc = ctypes.CDLL(None)


class _Mallinfo2(ctypes.Structure):
    """See mallinfo(3). `uordblks`: bytes in use."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


def keep_freed_memory() -> bool:
    """Use again what was freed, rather than give it back to the system. Returns whether that can be had."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MAPPINGS_AT_MOST, _NONE) and mallopt(_TRIM_THRESHOLD, _NEVER))


def give_back_surplus(surplus_bytes: int = SURPLUS_BYTES) -> bool:
    """Give back all that is kept, if it is more than this. Returns whether it was.

    To be called now and then: the next clip's pages have to be fetched anew afterwards, once.
    """
    mallinfo = getattr(_libc, "mallinfo2", None)
    if mallinfo is None:
        return False
    mallinfo.restype = _Mallinfo2
    if _resident_bytes() - mallinfo().uordblks <= surplus_bytes:
        return False
    _libc.malloc_trim(0)
    return True


def _resident_bytes() -> int:
    """Of memory that is no file's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024
