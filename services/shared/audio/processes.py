"""The parent's side of guarded processes.

There is one guarded process for each clip. It is forked by a small process that has the decoding libraries
loaded, the zygote, and is killed when it has answered, crashed or taken too long. Its answers are verified,
because a clip may have taken over the process.
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
"""Maximum time for the start of the zygote. Importing the libraries takes half a second, and longer under
load.
"""

_FOLDER = Path(__file__).parent
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""The only environment variables that a decoding process receives. Others may hold secrets."""


class NoProcess(Exception):
    """No process is available: the zygote has ended, or the system cannot start another process."""


class Unfiltered(NoProcess):
    """No process may read a clip: a seccomp filter is required, and it cannot be installed here."""


class Crashed(Exception):
    """The guarded process ended without an answer, or its answer was invalid."""


class Zygote:
    """The process that forks one guarded process per clip. It can be used from several threads."""

    def __init__(
        self, *, memory_bytes: int, cpu_seconds: float, filter_required: bool, program: str = PROGRAM
    ) -> None:
        """Start the zygote and wait until it is ready.

        Args:
            memory_bytes: Memory that a child may use beyond the libraries.
            cpu_seconds: Processor time that a child may use.
            filter_required: Refuse to work without a seccomp filter.
            program: Python code that the zygote runs. Tests replace it with code that misbehaves.

        Raises:
            NoProcess: The zygote did not become ready. It writes the reason to the standard error of this
                process.
            Unfiltered: System calls cannot be filtered, and `filter_required` is set.
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
        """Return False once the zygote has closed its end of the control socket."""
        return not self.ends_within(0)

    def ends_within(self, seconds: float) -> bool:
        """Wait until the zygote has closed its end of the control socket, and return whether it has.

        The kernel closes that end before it kills the remaining children. A child that was just forked may
        hold the same end open until it has died too, so that a crash can be noticed a little earlier.
        """
        hung_up = select.poll()
        try:
            hung_up.register(self._control, select.POLLRDHUP)
        except ValueError:  # `close` was called
            return True
        return bool(hung_up.poll(round(seconds * 1000)))

    def prepare(self, count: int) -> None:
        """Fork up to `count` processes in advance, so that clips do not wait for a fork."""
        with suppress(NoProcess):
            while len(self._spares) < count:
                self._spares.append(self._request_fork())

    def fork(self, deadline: float) -> "GuardedProcess":
        """Return a process for one clip. Raises NoProcess."""
        with suppress(IndexError, NoProcess):
            child = _after_hello(self._spares.popleft(), deadline)
            if child.is_alive():
                return child
            child.close()  # it was killed while it waited for a clip
        return _after_hello(self._request_fork(), deadline)

    def _request_fork(self) -> socket.socket:
        """Ask the zygote for a child, and return our end of the socket shared with the child.

        Raises NoProcess if the zygote does not answer or cannot fork.
        """
        try:
            connection, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        except OSError:
            raise NoProcess from None
        return connection

    def close(self) -> None:
        """End the zygote and with it all children that it forked."""
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
    """One guarded process, for one clip. It is killed when the context is left."""

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
        """Kill the process."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._connection.close()

    def ask(self, request: Request, deadline: float) -> Accepted:
        """Send a file and receive the verdict on its container. If it is accepted, `decoded` must be called
        next.

        Raises:
            Refused: The file is not accepted.
            Crashed: The file crashed the process, or the kernel killed it for lack of memory.
            Unfiltered: The process reads no file, because it lacks the required seccomp filter.
            TimeoutError: The deadline (on `time.monotonic`) has passed.
        """
        with _raising_crashed():
            self._send(request, deadline)
            try:
                return receive_verdict(self._connection, deadline)
            except NotFiltered:
                raise Unfiltered from None

    def decoded(self, max_seconds: float, deadline: float) -> tuple[Measurements, NDArray[np.float32]]:
        """Receive the decoded clip after `ask`.

        Returns:
            The measurements, and the mono samples. The samples are finite, not longer than `max_seconds`, and
            empty unless `finished` is set. Other measurements are not verified.

        Raises:
            Crashed: The process ended, or its answer was invalid.
            TimeoutError: The deadline has passed.
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
        # Empty pieces are not sent: a process that has all the bytes may have answered and ended already.
        for piece in filter(None, (request.header, request.data)):
            wait_until(self._connection, deadline)
            self._connection.sendall(piece)


@contextmanager
def _raising_crashed() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError, Malformed):
        raise Crashed from None


def _after_hello(connection: socket.socket, deadline: float) -> GuardedProcess:
    """Wait for a child's hello and return its process. Raises NoProcess if there is none."""
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
    """Start an isolated Python. It sees neither the environment nor the working directory of this process,
    and does not receive a Ctrl-C from the terminal.
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
    # OpenBLAS would otherwise start a thread per core, and a process with threads must not fork.
    return kept | {"OPENBLAS_NUM_THREADS": "1"}


def deadline_in(seconds: float) -> float:
    """Return the time on `time.monotonic` that is `seconds` from now."""
    return time.monotonic() + seconds
