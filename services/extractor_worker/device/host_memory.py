"""Controls how this process takes memory from the system and returns it. This module knows glibc but no
model.

Encoders on a CPU allocate and free hundreds of MiB in every layer. By default each allocation is a mapping of
its own, and the system has to find and zero its pages again, which takes half of the encoding time. With a C
library other than glibc the functions here do nothing.
"""

import ctypes
from pathlib import Path

SURPLUS_BYTES = 2 * 2**30
"""The most freed memory that is kept. Clips of different lengths leave gaps in it, so without a bound it
would grow to several times what any clip needs."""
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt(3)."""
_NEVER, _NONE = -1, 0
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

_libc = ctypes.CDLL(None)


class _Mallinfo2(ctypes.Structure):
    """The structure of mallinfo(3). Its `uordblks` are the bytes in use."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


def keep_freed_memory() -> bool:
    """Reuse freed memory instead of returning it to the system. Return whether the C library can do so."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, _NONE) and mallopt(_M_TRIM_THRESHOLD, _NEVER))


def give_back_surplus(surplus_bytes: int = SURPLUS_BYTES) -> bool:
    """Return all kept memory to the system if it is more than `surplus_bytes`. Return whether it was.

    Call this between clips. The next clip then has to fetch its pages from the system once.
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
    """Return the resident bytes of this process that belong to no file."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024
