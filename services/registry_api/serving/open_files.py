"""How many connections this process may have open: each takes one of the files that the system allows it.
Where they run out, no connection is accepted any more and no clip decoded, and nobody is told.

Systems mostly allow few at first, and more to who asks.
"""

import resource

OTHER_FILES = 256
"""Connections to bucket and Redis, decoders and their pipes, logs."""


def raise_limit_for(connections: int) -> int:
    """Ask for as many files as that takes. Returns for how many there is room: so many, or fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return min(connections, max(allowed - OTHER_FILES, allowed // 2))
