"""How this process fetches memory from the system. Knows glibc and no model."""

import ctypes

_TRIM_THRESHOLD, _MAPPINGS_AT_MOST = -1, -4
"""Parameters of glibc's mallopt(3)."""
_NEVER, _NONE = -1, 0


def keep_freed_memory() -> bool:
    """Use again what was freed, rather than give it back to the system. Returns whether that can be had.

    Encoders on a CPU allocate and free hundreds of MiB in every layer. By default each of these is a mapping
    of its own, whose pages the system has to find and zero anew: half of the time goes there. From now on
    the process keeps the most that it ever had in use.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    return bool(mallopt(_MAPPINGS_AT_MOST, _NONE) and mallopt(_TRIM_THRESHOLD, _NEVER))
