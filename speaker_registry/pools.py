"""The pools of connections inside httpx's clients, and what they lack.

httpx has no public way to its pools, nor httpcore to what is changed in them.
"""

from collections.abc import Callable
from typing import Any

import anyio
import httpcore
import httpx


def pools_of(http: httpx.Client | httpx.AsyncClient) -> list[Any]:
    """Return the pools of a client, also those for proxies. Only httpx's own transports have one."""
    transports = (http._transport, *http._mounts.values())
    own = (httpx.HTTPTransport, httpx.AsyncHTTPTransport)
    return [transport._pool for transport in transports if isinstance(transport, own)]


def forget_connections(http: httpx.Client | httpx.AsyncClient) -> None:
    """Empty the pools of a client in a forked process.

    The connections are not closed as httpx would do it, because they belong to the parent: this process only
    loses its copies of their descriptors.
    """
    for pool in pools_of(http):
        pool._connections, pool._requests = [], []
        pool._optional_thread_lock = type(pool._optional_thread_lock)()


def proxy_for(http: httpx.Client | httpx.AsyncClient, url: str) -> str | None:
    """Return the address of the proxy through which a client asks for a URL, without its credentials."""
    proxy = getattr(getattr(http._transport_for_url(httpx.URL(url)), "_pool", None), "_proxy_url", None)
    if proxy is None:
        return None
    return str(httpx.URL(scheme=proxy.scheme.decode(), host=proxy.host.decode(), port=proxy.port))


def close_failed_tunnels(http: httpx.Client | httpx.AsyncClient) -> None:
    """Make a client close each connection through an HTTP proxy on which a request fails.

    For a registry with HTTPS, httpcore asks the proxy for a tunnel, and then begins TLS inside it. If that
    fails or is canceled, httpcore neither closes the tunnel nor takes it out of its pool. A pool that holds
    only such tunnels refuses every request, so a client that lives long would be of no use after 100
    failures.
    """
    for pool in pools_of(http):
        if isinstance(pool, httpcore.HTTPProxy):
            _apply_to_connections(pool, _close_if_a_request_fails)
        elif isinstance(pool, httpcore.AsyncHTTPProxy):
            _apply_to_connections(pool, _close_async_if_a_request_fails)


def _apply_to_connections(pool: Any, change: Callable[[Any], None]) -> None:
    """Change each connection that a pool will make."""
    create = pool.create_connection

    def create_changed(origin: httpcore.Origin) -> Any:
        connection = create(origin)
        change(connection)
        return connection

    pool.create_connection = create_changed


def _close_if_a_request_fails(connection: httpcore.ConnectionInterface) -> None:
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


def _close_async_if_a_request_fails(connection: httpcore.AsyncConnectionInterface) -> None:
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
