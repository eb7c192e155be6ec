"""Builds requests byte by byte that no HTTP client would send, and forms that no library would build."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

BOUNDARY = "3f1c"
Part = tuple[str, bytes]
"""The header lines of a part, and its content."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        yield connection


def read_answer(connection: socket.socket) -> Answer:
    response = http.client.HTTPResponse(connection)
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


def ask(port: int, request: bytes) -> Answer:
    with connected(port) as connection:
        connection.sendall(request)
        return read_answer(connection)


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def field(name: str, value: str | bytes) -> Part:
    return f'Content-Disposition: form-data; name="{name}"', value.encode() if isinstance(
        value, str
    ) else value


def file(name: str, value: bytes, filename: str = "clip.wav") -> Part:
    return f'Content-Disposition: form-data; name="{name}"; filename="{filename}"', value


def form(*parts: Part, end: bytes = b"--\r\n") -> bytes:
    """Build a multipart body. `end` follows the last boundary."""
    marker = b"--" + BOUNDARY.encode()
    written = [marker + b"\r\n" + lines.encode() + b"\r\n\r\n" + body + b"\r\n" for lines, body in parts]
    return b"".join(written) + marker + end


CONTENT_TYPE = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
