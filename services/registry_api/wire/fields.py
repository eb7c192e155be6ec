"""Reads the fields of a multipart or URL-encoded form. This module knows no field's meaning.

This is stricter than Starlette's parser underneath, which accepts a truncated form as one with fewer fields,
and reads text that is not UTF-8 as Latin-1. Both are refused here.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import structlog
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import Request

from services.registry_api.protocol.parameters import repeated
from speaker_registry.errors import InvalidRequest, Unavailable

log = structlog.get_logger(__name__)

_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")  # RFC 2046, 5.1.1
_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 256 * 1024
_NO_ROOM_RETRY_AFTER_SECONDS = 5.0


class Fields:
    """The fields of one form. `text` and `file` raise `InvalidRequest`, which names the invalid field."""

    def __init__(self, values: Mapping[str, Sequence[str | UploadFile]]) -> None:
        self._values = values

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._values)

    def without(self, field: str) -> "Fields":
        """Return the other fields."""
        return Fields({name: values for name, values in self._values.items() if name != field})

    def with_typed_line_ends(self) -> "Fields":
        """Return the fields with each line end as one character, which browsers send as two (CRLF)."""
        return Fields(
            {
                name: [value.replace("\r\n", "\n") if isinstance(value, str) else value for value in values]
                for name, values in self._values.items()
            }
        )

    def text(self, field: str, *, max_length: int) -> str | None:
        """Return a text field unchanged, or None if the form does not have it."""
        value = self._single(field)
        if isinstance(value, UploadFile):
            raise InvalidRequest(f"Field '{field}' is a file; accepted: text.", param=field)
        if value is not None and len(value) > max_length:
            raise InvalidRequest(
                f"Field '{field}' has {len(value)} characters; accepted: up to {max_length}.", param=field
            )
        return value

    def file(self, field: str) -> UploadFile | None:
        """Return the file of a field, or None if there is none. An empty file without a name counts as none,
        because browsers send one if no file was chosen.
        """
        value = self._single(field)
        if isinstance(value, str) and value:
            raise InvalidRequest(f"Field '{field}' is text; accepted: a file.", param=field)
        if not isinstance(value, UploadFile) or not (value.filename or value.size):
            return None
        return value

    def _single(self, field: str) -> str | UploadFile | None:
        values = self._values.get(field, ())
        if len(values) > 1:
            raise repeated("Field", field, len(values))
        return values[0] if values else None


@asynccontextmanager
async def read_fields(request: Request) -> AsyncIterator[Fields]:
    """Parse the form of a request. Its files can be read only inside this context.

    Raises:
        InvalidRequest: the form is damaged, truncated, or not UTF-8.
        Unavailable: the disk for temporary files cannot take a file of the form.
        SpeakerRegistryError: the body exceeds a limit of `serving.limits`.
    """
    content_type = request.headers.get("content-type", "")
    kind, options = parse_options_header(content_type)
    _check_charset(options)
    try:
        if kind == b"multipart/form-data":
            form, encoding = await _read_multipart(request, options.get(b"boundary", b"")), "latin-1"
        elif kind == b"application/x-www-form-urlencoded":
            form, encoding = await _read_urlencoded(request), "utf-8"
        else:
            raise InvalidRequest(
                f"Content-Type is {ascii(content_type)[:80]}; accepted: multipart/form-data, or "
                "application/x-www-form-urlencoded if the form has no file.",
                param="Content-Type",
            )
    except MultiPartException as error:
        reason = re.sub(r"(\d)KB\b", r"\1 KiB", error.message)  # starlette divides by 1024
        raise InvalidRequest(f"The form cannot be read: {reason}") from None
    except FormParserError:
        raise InvalidRequest("The form cannot be read: it is damaged.") from None
    try:
        yield _decoded(form, encoding)
    finally:
        await form.close()


def _check_charset(options: Mapping[bytes, bytes]) -> None:
    charset = options.get(b"charset", b"utf-8").lower()
    if charset not in {b"utf-8", b"utf8", b"us-ascii"}:
        shown = ascii(charset.decode("latin-1"))[:40]
        raise InvalidRequest(f"The form's charset is {shown}; accepted: utf-8.", param="Content-Type")


async def _read_multipart(request: Request, boundary: bytes) -> FormData:
    """Parse a multipart form. Texts are decoded as Latin-1, which keeps their bytes for `_utf8` to check."""
    if not _BOUNDARY.fullmatch(boundary):
        raise InvalidRequest(
            "Content-Type has no boundary, or one that is not allowed; accepted: 1 to 70 of the "
            "characters that RFC 2046 allows.",
            param="Content-Type",
        )
    as_bytes = b'multipart/form-data; charset="latin-1"; boundary="%b"' % boundary
    parser = _WholeForm(
        Headers(raw=[(b"content-type", as_bytes)]),
        request.stream(),
        max_files=_MAX_FIELDS,
        max_fields=_MAX_FIELDS,
        max_part_size=_MAX_FIELD_BYTES,
    )
    try:
        return await parser.parse()
    except OSError as error:  # the parser writes larger files to the disk for temporary files
        log.error("upload.no_room", reason=error.strerror or type(error).__name__)
        raise Unavailable(
            "The server has no room for this upload, because its disk for temporary files is full or cannot "
            "be written.",
            retry_after_seconds=_NO_ROOM_RETRY_AFTER_SECONDS,
        ) from None


async def _read_urlencoded(request: Request) -> FormData:
    parser = FormParser(
        request.headers, request.stream(), max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
    )
    return await parser.parse()


class _WholeForm(MultiPartParser):
    """A parser that refuses a form without its last boundary: a truncated form would silently lack fields."""

    _ended = False

    def on_end(self) -> None:
        self._ended = True

    async def parse(self) -> FormData:
        form = await super().parse()
        if not self._ended:
            await form.close()
            raise MultiPartException("it is truncated, because its last boundary is missing.")
        return form


def _decoded(form: FormData, encoding: str) -> Fields:
    values: dict[str, list[str | UploadFile]] = {}
    for name, value in form.multi_items():
        field = _utf8(name, encoding, "A field's name")
        text = (
            value if isinstance(value, UploadFile) else _utf8(value, encoding, f"Field {ascii(field)[:40]}")
        )
        values.setdefault(field, []).append(text)
    return Fields(values)


def _utf8(text: str, encoding: str, what: str) -> str:
    """Return the text whose UTF-8 bytes `text` holds in this encoding."""
    try:
        decoded = text.encode(encoding).decode()
    except UnicodeError:
        raise InvalidRequest(f"{what} is not UTF-8.") from None
    if encoding == "utf-8" and "\ufffd" in decoded:  # the parser's replacement for invalid bytes
        raise InvalidRequest(f"{what} is not UTF-8.")
    return decoded
