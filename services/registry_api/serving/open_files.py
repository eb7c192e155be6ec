"""The limit on open files, which bounds how many connections this process can serve.

Each connection takes one open file. When the limit is reached, no more connections are accepted and no clips
are decoded, without any message. Most systems set a low soft limit, which a process may raise to the hard
limit.
"""

import resource

from services.registry_api.serving.connection_table import MAX_SURPLUS

OTHER_FILES = 256 + MAX_SURPLUS
"""Number of open files for everything else: connections to bucket and Redis, decoders and their pipes, logs,
and connections of clients that are only told that there are too many.
"""
LEAST_FILES = 64
"""Smallest accepted limit. A process without connections has about 25 files open. Connections may take half
of a low limit, so with a lower one health checks would get no answer.
"""


class TooFewFiles(Exception):
    """The hard limit on open files is too low to serve anything."""


def raise_limit_for(connections: int) -> int:
    """Raise the limit on open files to the number that this many connections need.

    Returns:
        The number of connections that the limit then allows: `connections`, or fewer.

    Raises:
        TooFewFiles: the hard limit is below `LEAST_FILES`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed < LEAST_FILES:
        raise TooFewFiles(
            f"This process may open {hard} files (ulimit -Hn); at least {LEAST_FILES} are needed."
        )
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return min(connections, max(allowed - OTHER_FILES, allowed // 2))
