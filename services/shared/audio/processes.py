"""Guarded processes from the asker's side: one for each clip, forked by a small process that has the
libraries loaded, and killed when it has answered, died or taken too long. What it answers is checked before
it is believed. Knows no audio format.
"""

import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from services.shared.audio.sandbox.wire import (
    HELLO,
    READY,
    UNFILTERED,
    Accepted,
    Malformed,
    Measurements,
    NotFiltered,
    Request,
    receive,
    receive_verdict,
    wait_until,
)

PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from sandbox.zygote import main; main()"
START_SECONDS = 30.0
"""Importing the libraries takes half a second; a machine under load may need longer."""

_FOLDER = Path(__file__).parent
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""Of our environment, which holds secrets, all that a decoding process gets to see."""


class NoProcess(Exception):
    """None could be had: the zygote is gone, or the system has no room for another process."""


class Unfiltered(NoProcess):
    """There will be none that may read a clip: a seccomp filter is required, and there can be none."""


class Crashed(Exception):
    """The process ended, or answered with something that is no answer."""


class Zygote:
    """The process that forks one guarded process per clip. Safe to use from several threads."""

    def __init__(
        self, *, memory_bytes: int, cpu_seconds: float, filter_required: bool, program: str = PROGRAM
    ) -> None:
        """Start it and wait until it is ready. Raises NoProcess if it does not get there; its stderr, which
        is ours, says why. Raises Unfiltered if system calls cannot be filtered and `filter_required` is set.

        program: what Python runs in it. Tests replace it by one that misbehaves.
        """
        self._spares: deque[socket.socket] = deque()
        limits = (memory_bytes, math.ceil(cpu_seconds), int(filter_required))
        arguments = [str(_FOLDER), *map(str, limits)]
        try:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = _python(["-c", program, *arguments], theirs)
        except OSError:
            raise NoProcess from None
        self._control.settimeout(START_SECONDS)
        if (word := self._first_word()) != READY:
            self.close()
            raise Unfiltered if word == UNFILTERED else NoProcess

    def _first_word(self) -> bytes:
        try:
            return self._control.recv(1)
        except OSError:
            return b""

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def is_alive(self) -> bool:
        """By its end of the control socket, which the kernel closes before it kills the children left."""
        hung_up = select.poll()
        try:
            hung_up.register(self._control, select.POLLRDHUP)
        except ValueError:  # closed by us
            return False
        return not hung_up.poll(0)

    def prepare(self, count: int) -> None:
        """Have `count` processes forked ahead of their clips. A clip then does not wait for its own."""
        with suppress(NoProcess):
            while len(self._spares) < count:
                self._spares.append(self._request_fork())

    def fork(self, deadline: float) -> "GuardedProcess":
        """A process for one clip. Raises NoProcess."""
        with suppress(IndexError, NoProcess):
            child = _greeted(self._spares.popleft(), deadline)
            if child.is_alive():
                return child
            child.close()  # killed while it waited
        return _greeted(self._request_fork(), deadline)

    def _request_fork(self) -> socket.socket:
        """Have a process forked, and return our end of its socket. Raises NoProcess."""
        try:
            connection, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        except OSError:
            raise NoProcess from None
        return connection

    def close(self) -> None:
        """End it, and with it every child that it forked."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        while self._spares:
            self._spares.pop().close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class GuardedProcess:
    """One guarded process, for one clip. Leaving the context kills it."""

    def __init__(self, connection: socket.socket, pidfd: int) -> None:
        self._connection = connection
        self._pidfd = pidfd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_alive(self) -> bool:
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return not ended.poll(0)

    def close(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._connection.close()

    def ask(self, request: Request, deadline: float) -> Accepted:
        """Send a file, and learn whether its container is accepted. `decoded` has to follow then.

        Raises:
            Refused: it is not. Crashed: by what the file did to it, or by the kernel for want of memory.
            Unfiltered: it reads no file, because it lacks the filter that is required.
            TimeoutError: at the deadline (on `time.monotonic`).
        """
        with _raising_crashed():
            self._send(request, deadline)
            try:
                return receive_verdict(self._connection, deadline)
            except NotFiltered:
                raise Unfiltered from None

    def decoded(self, max_seconds: float, deadline: float) -> tuple[Measurements, NDArray[np.float32]]:
        """What the file that was asked about decodes to.

        Returns:
            What was measured, and the mono samples: finite, no longer than `max_seconds`, and empty unless
            `finished`. Nothing else that was measured is vouched for.

        Raises:
            Crashed; TimeoutError: as `ask`.
        """
        with _raising_crashed():
            measured = Measurements.receive(self._connection, deadline)
            if not measured.credible(max_seconds):
                raise Malformed
            samples = np.frombuffer(receive(self._connection, 4 * measured.samples, deadline), np.float32)
        if not np.isfinite(samples).all():
            raise Crashed
        return measured, samples

    def _send(self, request: Request, deadline: float) -> None:
        # No empty piece: who has all the bytes may have answered and ended, and sending to it would fail.
        for piece in filter(None, (request.header, request.data)):
            wait_until(self._connection, deadline)
            self._connection.sendall(piece)


@contextmanager
def _raising_crashed() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError, Malformed):
        raise Crashed from None


def _greeted(connection: socket.socket, deadline: float) -> GuardedProcess:
    """The process at the other end, once it has said hello. Raises NoProcess if it does not."""
    try:
        wait_until(connection, deadline)
        hello, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    except OSError:
        hello, descriptors = b"", []
    if hello != HELLO or not descriptors:
        connection.close()
        raise NoProcess
    return GuardedProcess(connection, descriptors[0])


def _python(arguments: list[str], control: socket.socket) -> "subprocess.Popen[bytes]":
    """Isolated: it sees neither our environment nor our folder, and a Ctrl-C in our terminal does not reach
    it.
    """
    return subprocess.Popen(
        [sys.executable, "-I", *arguments],
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        env=_environment(),
        cwd="/",
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    # OpenBLAS starts a thread per core otherwise, and a process with threads must not fork.
    return kept | {"OPENBLAS_NUM_THREADS": "1"}


def deadline_in(seconds: float) -> float:
    return time.monotonic() + seconds
