"""Conditions and parts of a request for stored bytes: `If-None-Match` and `Range` (RFC 9110, 13 and 14)."""

import re

from starlette.datastructures import Headers

_JUDGED_BY_STATE = ("if-match", "if-modified-since", "if-range", "if-unmodified-since")
_SINGLE_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def matches(header: str | None, tag: str) -> bool:
    """Return whether the list of ETags in `If-None-Match` or `If-Match` contains this one, weak or strong."""
    if header is None:
        return False
    tags = {one.strip().removeprefix("W/") for one in header.split(",")}
    return tag.removeprefix("W/") in tags or "*" in tags


def binds_to_registry(headers: Headers) -> bool:
    """Return whether a request has a condition that only the registry can judge, so that the request must not
    be redirected. Clients send their headers along when they follow a redirect.

    The bucket has an ETag and a time of its own for each object: it would refuse a right `If-Match`, or send
    a part of another file. `If-None-Match` is harmless: the bucket only answers 304 to an ETag that it gave.
    """
    return any(name in headers for name in _JUDGED_BY_STATE)


def content_range(part: range, size: int) -> bytes:
    """Return the value of `Content-Range`."""
    return b"bytes %d-%d/%d" % (part.start, part.stop - 1, size)


def part_of(size: int, header: str) -> range | None:
    """Return the positions of the bytes that a `Range` header asks for.

    Returns None where the header is ignored and all bytes are sent: it is not valid, asks for several ranges,
    or begins after the last byte.

    Args:
        size: how many bytes there are.
    """
    match = _SINGLE_RANGE.fullmatch(header.strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:  # a suffix range: the last `last` bytes
        return range(max(0, size - int(last)), size) or None
    end = min(int(last) + 1, size) if last else size
    return range(int(first), end) or None
