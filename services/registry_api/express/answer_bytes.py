"""The bytes of prepared answers: selects the parts of a sent answer that are kept, and builds answers from
them.
"""

from dataclasses import replace
from http import HTTPStatus

from starlette.responses import Response

from services.registry_api.express.prepared import PreparedAnswer
from services.registry_api.express.questions import HEAD, Headers, Question
from services.registry_api.protocol.conditions import content_range, matches, part_of

_CHANGING = frozenset(
    {
        *(b"date", b"x-request-id"),
        *(b"ratelimit-limit", b"ratelimit-remaining", b"ratelimit-reset", b"ratelimit-policy"),
    }
)
"""Headers that differ from answer to answer."""
_OF_BODIES = frozenset((b"content-length", b"content-type", b"content-encoding"))
"""Headers that answers with status 304 do not have."""
_OF_ROUTES = (b"etag", b"cache-control", b"content-type", b"content-encoding")
"""Headers of answers from memory that no middleware adds."""


def fitting(answer: PreparedAnswer, question: Question) -> tuple[int, bytes, bytes | memoryview] | None:
    """Return the status, head and body for the conditions of a request, or None if the ordinary way must
    answer it.
    """
    tag, part = question.tag, question.part
    if tag is not None and (tag == answer.etag or matches(tag.decode("latin-1"), answer.etag.decode())):
        return 304, answer.unchanged, b""
    if answer.whole is None:
        return None
    if question.method == HEAD:
        return 200, answer.whole, b""
    if part is None or not answer.is_file:
        return 200, answer.whole, answer.body
    return _part(answer, answer.whole, part.decode("latin-1"))


def _part(answer: PreparedAnswer, whole: bytes, header: str) -> tuple[int, bytes, bytes | memoryview]:
    size = len(answer.body)
    part = part_of(size, header)
    if part is None:
        return 200, whole, answer.body
    head = whole.replace(_status_line(200), _status_line(206), 1)
    head = head.replace(b"\r\ncontent-digest: ", b"\r\nrepr-digest: ", 1)
    lengths = b"content-length: %d\r\ncontent-range: %s" % (len(part), content_range(part, size))
    head = head.replace(b"content-length: %d" % size, lengths, 1)
    return 206, head, memoryview(answer.body)[part.start : part.stop]


def response(status: int, head: bytes, body: bytes | memoryview) -> Response:
    """Return an answer from memory for the middleware, which adds its own headers again."""
    lines = dict(line.split(b": ", 1) for line in head.splitlines()[1:])
    headers = {name.decode(): lines[name].decode("latin-1") for name in _OF_ROUTES if name in lines}
    return Response(body, status, headers)


def prepare(
    known: PreparedAnswer, status: int, headers: Headers, body: bytes | None
) -> PreparedAnswer | None:
    """Return a prepared answer from what was sent, or None if it must not be kept. Without a body, the answer
    only serves revalidations.
    """
    lines = [(name.lower(), value) for name, value in headers if name.lower() not in _CHANGING]
    etag = dict(lines).get(b"etag")
    if etag is None or status not in {200, 304}:
        return None
    unchanged = _head(304, [line for line in lines if line[0] not in _OF_BODIES])
    if status == 304 or body is None:
        return replace(known, etag=etag, unchanged=unchanged)
    return replace(known, etag=etag, unchanged=unchanged, whole=_head(200, lines), body=body)


def _head(status: int, lines: Headers) -> bytes:
    return _status_line(status) + lines_of(lines)


def lines_of(headers: Headers) -> bytes:
    return b"".join([b"%s: %s\r\n" % line for line in headers])


def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
