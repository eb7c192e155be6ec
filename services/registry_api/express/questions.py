"""Requests that may be answered from memory, read from the head as it was sent.

Requests with anything else in their head that could change the answer are excluded.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b

from services.registry_api.express.prepared import Key
from services.registry_api.protocol.routing import RESOLVE

_RESOLVE = RESOLVE.encode()
_TARGETS = (b"/v1/voices/", b"/v1/blobs/", b"/v1/profiles/")
_READ = (
    *(b"authorization", b"x-speaker-namespace", b"host", b"accept-encoding"),
    *(b"if-none-match", b"range", b"x-request-id", b"content-type"),
)
_POSITIONS = {name: position for position, name in enumerate(_READ)}
_NONE: frozenset[bytes] = frozenset()
_IGNORED = frozenset(
    {
        *(b"accept", b"accept-language", b"cache-control", b"connection", b"pragma", b"user-agent"),
        *(b"traceparent", b"tracestate"),
    }
)
_OF_PROXIES = frozenset(
    {
        *(b"forwarded", b"via", b"x-real-ip"),
        *(b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto"),
    }
)
_OF_BODIES = frozenset({b"content-length"})
_IGNORED_OF = {
    (local, has_body): _IGNORED | (_NONE if local else _OF_PROXIES) | (_OF_BODIES if has_body else _NONE)
    for local in (False, True)
    for has_body in (False, True)
}
"""Maps (whether no keys are required, whether the request has a body) to the headers that change no
answer.
"""
HEAD = b"HEAD"
_METHODS = frozenset({b"GET", HEAD})
_JSON = b"application/json"

Headers = Sequence[tuple[bytes, bytes]]
Credentials = tuple[bytes | None, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class Question:
    """A request that may be answered from memory."""

    method: bytes
    credentials: Credentials
    key: Key
    tag: bytes | None
    """The value of `If-None-Match`."""
    part: bytes | None
    """The value of `Range`."""
    request_id: bytes | None
    """The value of `X-Request-Id`."""


def wants_body(method: bytes, target: bytes) -> bool:
    """Return whether a request like this one may be answered from memory once its body has arrived."""
    return target == _RESOLVE and method == b"POST"


def question_of(
    method: bytes, target: bytes, headers: Headers, body: bytes | None, *, local: bool
) -> Question | None:
    """Parse a request. Returns None if it takes the ordinary way.

    Args:
        target: the path and query as they were sent.
        body: the body of a request for which `wants_body` holds, else None.
        local: whether no keys are required, so that only requests from this machine are answered.
    """
    if body is None and (method not in _METHODS or not target.startswith(_TARGETS)):
        return None
    read = _values(headers, _IGNORED_OF[local, body is not None])
    if read is None:
        return None
    authorization, namespace, host, encoding, tag, part, request_id, media_type = read
    if media_type != (None if body is None else _JSON):
        return None
    credentials = (authorization, namespace, host if local else None)
    key = (target if body is None else target + blake2b(body).digest(), encoding)
    return Question(method, credentials, key, tag, part, request_id)


def _values(headers: Headers, ignored: Set[bytes]) -> list[bytes | None] | None:
    """Return the values of the headers in `_READ`, or None if there are other relevant headers or repeated
    ones.
    """
    read: list[bytes | None] = [None] * len(_READ)
    for name, value in headers:
        position = _POSITIONS.get(name)
        if position is None:
            if name not in ignored:
                return None
        elif read[position] is not None:
            return None
        else:
            read[position] = value
    return read
