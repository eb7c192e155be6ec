"""A relay of TCP connections for tests, which makes a server unreachable or silent, and reachable again."""

import socket
import threading
from contextlib import suppress
from itertools import permutations
from typing import Self

from tests.ports import free_port


class Relay:
    """Forwards connections from `port` to a server on this machine, while it is open."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self.accepted = 0
        """The number of connections that were accepted so far, also while it forwarded nothing."""
        self._target = ("127.0.0.1", target_port)
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self, *, silent: bool = False) -> None:
        """Forward connections from now on, or accept them and forward nothing."""
        listener = socket.create_server(("127.0.0.1", self.port))
        with self._lock:
            self._sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener, silent), daemon=True).start()

    def close(self) -> None:
        """End all connections, and refuse further ones."""
        with self._lock:
            while self._sockets:
                with suppress(OSError):
                    self._sockets[-1].shutdown(socket.SHUT_RDWR)
                self._sockets.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, listener: socket.socket, silent: bool) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                self.accepted += 1
                ends = [near] if silent else [near, socket.create_connection(self._target)]
                if not self._keep(ends, listener):
                    return
                for source, sink in permutations(ends, 2):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()

    def _keep(self, ends: list[socket.socket], listener: socket.socket) -> bool:
        """Keep the ends of a connection, which `close` ends. If that has come meanwhile, end them."""
        with self._lock:
            if listener in self._sockets:
                self._sockets += ends
                return True
        for end in ends:
            end.close()
        return False


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
