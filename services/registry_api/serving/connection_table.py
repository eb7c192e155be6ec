"""Tracks the connections of a process, and decides which one is closed when there is no room for another.

An idle connection of the address with the most connections is closed, so a client that keeps opening
connections only displaces its own. If none is idle, a new connection is a surplus: its requests are refused,
except health checks. This module knows no HTTP.
"""

from typing import Protocol

import structlog

from services.shared.telemetry.logs import LogThrottle

log = structlog.get_logger()

MAX_SURPLUS = 64
"""The largest number of surplus connections. Beyond it, the oldest surplus connection is closed."""
_WARNING_SECONDS = 60.0
_warnings = LogThrottle(_WARNING_SECONDS)


class Connection(Protocol):
    @property
    def is_idle(self) -> bool:
        """True if the connection can be closed without losing a request or an answer."""
        ...

    def close_to_make_room(self) -> None:
        """Close the connection to make room for another one."""


class ConnectionTable:
    """The connections of one process. Must only be used from its event loop.

    Args:
        limit: the largest number of connections, besides the surplus.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._addresses: dict[Connection, str] = {}
        self._by_address: dict[str, dict[Connection, None]] = {}
        """The connections of each address, oldest first."""
        self._surplus: dict[Connection, None] = {}

    def admit(self, connection: Connection, address: str) -> bool:
        """Add a connection from an address. Returns False if it is a surplus."""
        if len(self._addresses) >= self.limit and not self._make_room():
            self._add_surplus(connection)
            return False
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed. Does nothing if it is not known."""
        self._surplus.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is not None:
            del self._by_address[address][connection]
            if not self._by_address[address]:
                del self._by_address[address]

    def _make_room(self) -> bool:
        address, largest = max(self._by_address.items(), key=lambda item: len(item[1]))
        if _warnings.due("full"):
            log.warning("connections.full", limit=self.limit, address=address, connections=len(largest))
        idle = next((one for one in largest if one.is_idle), None)
        if idle is None:
            return False
        self.remove(idle)
        idle.close_to_make_room()
        return True

    def _add_surplus(self, connection: Connection) -> None:
        self._surplus[connection] = None
        if len(self._surplus) > MAX_SURPLUS:
            oldest = next(iter(self._surplus))
            self.remove(oldest)
            oldest.close_to_make_room()
