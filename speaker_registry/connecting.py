"""Makes the clients of httpx, and describes why one has no answer.

httpx reads variables of the environment. If it cannot use one, it raises errors that do not name it.
"""

import os
from collections.abc import Callable
from typing import TypeVar
from urllib.request import getproxies

import httpx

from speaker_registry.errors import Unavailable
from speaker_registry.pools import proxy_for

Client = TypeVar("Client")

_ACCEPTED_PROXIES = (
    "http://host:port, https://host:port, and socks5://host:port if the Python package socksio is installed"
)
_PRIVATE_AUTHORITY = (
    "; if a private authority has signed the certificate, set SSL_CERT_FILE to a PEM file with the "
    "authority's own certificate"
)


def connecting(make: Callable[[], Client]) -> Client:
    """Return the client that a function makes.

    Raises:
        ValueError: A variable of the environment that httpx reads cannot be used. The message names it, but
            shows no address of a proxy, because that may contain a password.
    """
    try:
        return make()
    except OSError as error:
        if not (file := os.environ.get("SSL_CERT_FILE")):
            raise
        raise ValueError(
            f"SSL_CERT_FILE is {file!r}; certificates cannot be read from it: {error.strerror or error}"
        ) from None
    except (ImportError, ValueError, httpx.InvalidURL):
        scheme = next(filter(_is_unusable, ("http", "https", "all")), None)
        if scheme is None:
            raise ValueError("NO_PROXY cannot be used; accepted: hosts, comma-separated") from None
        raise ValueError(
            f"{scheme.upper()}_PROXY cannot be used as a proxy's address; accepted: {_ACCEPTED_PROXIES}"
        ) from None


def no_answer(http: httpx.Client | httpx.AsyncClient, url: str, error: Exception) -> Unavailable:
    """Return the error for a request that has no answer, or only one that cannot be read."""
    proxy = proxy_for(http, url)
    through = f" through the proxy {proxy}" if proxy else ""
    reason = str(error) or type(error).__name__
    hint = _PRIVATE_AUTHORITY if "CERTIFICATE_VERIFY_FAILED" in reason else ""
    return Unavailable(f"no answer from {url}{through}: {reason}{hint}")


def _is_unusable(scheme: str) -> bool:
    address = getproxies().get(scheme)
    if not address:
        return False
    try:
        httpx.HTTPTransport(proxy=address if "://" in address else f"http://{address}").close()
    except (ImportError, ValueError, httpx.InvalidURL):
        return True
    return False
