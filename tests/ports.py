"""Free ports for the servers that tests start."""

import fcntl
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

# The kernel takes the local ports of outgoing connections from 32768 upwards. One of those may be taken
# between the moment when it is found to be free and the moment when the server listens on it.
_PORTS: Final = range(20_000, 32_768)
_FOLDER: Final = Path(tempfile.gettempdir()) / "speaker-registry-test-ports"
# The locks are held until this process ends, so that other test processes keep away from its ports.
_locks: list[TextIO] = []


def free_ports(number: int) -> list[int]:
    """Return different ports that no process listens on and that no other test process will be given."""
    _FOLDER.mkdir(exist_ok=True)
    candidates = iter(random.sample(_PORTS, len(_PORTS)))
    return [next(port for port in candidates if _is_free(port) and _reserve(port)) for _ in range(number)]


def free_port() -> int:
    """Return one such port."""
    [port] = free_ports(1)
    return port


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("0.0.0.0", port)):
        return True
    return False


def _reserve(port: int) -> bool:
    lock = (_FOLDER / str(port)).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    _locks.append(lock)
    return True
