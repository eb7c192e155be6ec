"""Requests to an OpenID provider: their answers are bounded in time and size, and none goes to plain http on
another machine.
"""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

_READ_TIMEOUT_SECONDS = 5.0
"""Time limit of each step of the provider's answer."""
_ANSWER_SECONDS = 10.0
"""Time limit of the whole answer of the provider."""
_MAX_ANSWER_BYTES = 256 * 1024
"""Largest accepted answer of the provider."""
PROVIDER_ERRORS = (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError, OSError, ImportError)
"""Errors of a request to the provider. The last two tell that the environment names a file of certificates
that is not there, or a kind of proxy that is not supported.
"""
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
"""Registered error codes of OAuth have only these characters. Other text is not kept, because it may quote
what the provider was sent.
"""


class ProviderRefused(ValueError):
    """The provider answered with a status other than 2xx.

    Args:
        status: the status of its answer.
        code: the error code of OAuth in its answer, such as `invalid_client`. Empty if there is none.
    """

    def __init__(self, url: str, status: int, code: str) -> None:
        super().__init__(f"{url} answers {status} {code}".rstrip())
        self.status = status
        self.code = code


def provider_client() -> httpx.Client:
    # Each request has a connection of its own, which its time limit can end. A few compressed bytes could
    # expand to gigabytes before they are counted.
    return httpx.Client(
        timeout=_READ_TIMEOUT_SECONDS,
        limits=httpx.Limits(max_keepalive_connections=0),
        headers={"Accept-Encoding": "identity"},
    )


def fetch_json(
    http: httpx.Client,
    url: str,
    form: Mapping[str, str] | None = None,
    auth: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Send a GET request to the provider, or a POST with `form`, and return the JSON object of its answer.

    Args:
        http: a client from `provider_client`.

    Raises:
        httpx.HTTPError: the provider does not answer.
        ProviderRefused: the provider refuses.
        ValueError: its answer is too long, too slow, compressed or not a JSON object.
    """
    method = "GET" if form is None else "POST"
    with (
        _time_limit(url) as trace,
        http.stream(method, url, data=form, auth=auth, extensions={"trace": trace}) as response,
    ):
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError(f"{url} answers with a compressed body, which was not asked for")
        body = b""
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > _MAX_ANSWER_BYTES:
                raise ValueError(f"{url} has more than {_MAX_ANSWER_BYTES} bytes")
    if not response.is_success:
        raise ProviderRefused(url, response.status_code, _error_code(body))
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError(f"{url} holds no JSON object")
    return document


@contextmanager
def _time_limit(url: str) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Shut the connection of a request down when `_ANSWER_SECONDS` are over.

    Before there is a connection, only the operating system limits the look-up of the name, and the timeout of
    httpx the connecting to each address. The timeouts of httpx are for single reads, so they do not end an
    answer that arrives byte by byte.

    Yields:
        The trace function of the request, which learns of the connection.

    Raises:
        ValueError: the time was over.
    """
    connections: list[socket.socket] = []
    is_over = threading.Event()

    def shut_down() -> None:
        is_over.set()
        for connection in connections:
            with suppress(OSError):  # it has ended already
                connection.shutdown(socket.SHUT_RDWR)

    def trace(event: str, details: dict[str, Any]) -> None:
        if event.endswith("connect_tcp.complete"):
            # TLS takes the socket over, but a duplicate belongs to the same connection.
            connections.append(details["return_value"].get_extra_info("socket").dup())
            if is_over.is_set():
                shut_down()

    timer = threading.Timer(_ANSWER_SECONDS, shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield trace
    except (httpx.HTTPError, ValueError):
        if not is_over.is_set():
            raise
    finally:
        timer.cancel()
        for connection in connections:
            connection.close()
    if is_over.is_set():  # an answer that was cut short may seem complete
        raise ValueError(f"{url} takes longer than {_ANSWER_SECONDS:.0f} s")


def _error_code(body: bytes) -> str:
    """Return the error code of OAuth in a refusal, or an empty text."""
    try:
        code = json.loads(body)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""


def require_https(url: str, issuer: str) -> str:
    """Return a URL of the provider. Raises ValueError if it is plain http although the issuer is https."""
    if urlsplit(url).scheme not in {"https", urlsplit(issuer).scheme}:
        raise ValueError(f"its keys lie at {ascii(url)[:200]}, which is not https")
    return url
