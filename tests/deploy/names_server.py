"""A name server that knows one name, as a container engine's does: each address behind it is a container."""

import socket
import struct
import threading
from collections.abc import Sequence
from typing import Self

_A, _IN = 1, 1
_ANSWERED, _NO_SUCH_NAME = 0x8180, 0x8183
_POINTER_TO_THE_QUESTION = 0xC00C
_TTL_SECONDS = 1


class NamesServer:
    """Context manager. addresses: of IPv4, and may be replaced at any time."""

    def __init__(self, name: str, addresses: Sequence[str]) -> None:
        self._name = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
        self.addresses = tuple(addresses)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._socket.getsockname())
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                question, asker = self._socket.recvfrom(4096)
                self._socket.sendto(self._answer(question), asker)
            except OSError:
                return

    def _answer(self, asked: bytes) -> bytes:
        end = asked.index(b"\0", 12) + 5  # after the name: type and class
        name, kind = asked[12 : end - 4], struct.unpack("!H", asked[end - 4 : end - 2])[0]
        known = name.lower() == self._name
        found = self.addresses if known and kind == _A else ()
        flags = _ANSWERED if known else _NO_SUCH_NAME
        head = asked[:2] + struct.pack("!5H", flags, 1, len(found), 0, 0)
        fields = struct.pack("!3HIH", _POINTER_TO_THE_QUESTION, _A, _IN, _TTL_SECONDS, 4)
        return head + asked[12:end] + b"".join(fields + socket.inet_aton(address) for address in found)
