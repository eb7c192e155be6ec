"""Connections through HTTP proxies to a registry with HTTPS.

httpcore asks the proxy for a tunnel, and then begins TLS inside it. If that fails or is canceled, httpcore
neither closes the tunnel nor takes it out of its pool. A pool that holds only such tunnels refuses every
request, so a client that lives long would be of no use after 100 failures.
"""

from collections.abc import Callable
from functools import wraps

import anyio
import httpcore
import httpx


def close_failed_tunnels(http: httpx.Client | httpx.AsyncClient) -> None:
    """Make a client close each connection through a proxy on which a request fails. Only httpx's own
    transports are changed.
    """
    # httpx and httpcore have no public way to reach what is changed here.
    for transport in (http._transport, *http._mounts.values()):
        pool = getattr(transport, "_pool", None)
        if isinstance(pool, httpcore.HTTPProxy):
            pool.create_connection = _closing(pool.create_connection)  # type: ignore[assignment, method-assign]
        elif isinstance(pool, httpcore.AsyncHTTPProxy):
            pool.create_connection = _closing_async(pool.create_connection)  # type: ignore[assignment, method-assign]


def _closing(
    create: Callable[[httpcore.Origin], httpcore.ConnectionInterface],
) -> Callable[[httpcore.Origin], httpcore.ConnectionInterface]:
    @wraps(create)
    def create_closing(origin: httpcore.Origin) -> httpcore.ConnectionInterface:
        connection = create(origin)
        handle = connection.handle_request

        def handle_or_close(request: httpcore.Request) -> httpcore.Response:
            try:
                return handle(request)
            except httpcore.ConnectionNotAvailable:
                raise  # it serves another request
            except BaseException:
                connection.close()
                raise

        connection.handle_request = handle_or_close  # type: ignore[method-assign]
        return connection

    return create_closing


def _closing_async(
    create: Callable[[httpcore.Origin], httpcore.AsyncConnectionInterface],
) -> Callable[[httpcore.Origin], httpcore.AsyncConnectionInterface]:
    @wraps(create)
    def create_closing(origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        connection = create(origin)
        handle = connection.handle_async_request

        async def handle_or_close(request: httpcore.Request) -> httpcore.Response:
            try:
                return await handle(request)
            except httpcore.ConnectionNotAvailable:
                raise  # it serves another request
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await connection.aclose()
                raise

        connection.handle_async_request = handle_or_close  # type: ignore[method-assign]
        return connection

    return create_closing
