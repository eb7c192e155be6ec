"""Actions of a library that a hostile clip has taken over. They run in a guarded process in place of reading
the clip, and know only what that process has.
"""

import ctypes
import importlib
import os
import resource
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Answer = tuple[Any, list[Any]]


def allocate(request: Any) -> Answer:
    hoard = [np.ones(16 << 20, np.uint8) for _ in range(1000)]
    return answer(hoard)


def spin(request: Any) -> Answer:
    while True:
        pass


def wait(seconds: float) -> None:
    """Wait as `time.sleep` does, whose system call is not among the permitted ones."""
    select.poll().poll(seconds * 1000)


def sleep(request: Any) -> Answer:
    wait(60)
    return answer([])


def doze(request: Any) -> Answer:
    wait(1)
    return answer([])


def drip(request: Any) -> Answer:
    """An answer that never ends, a byte at a time."""
    while True:
        os.write(3, b"p")
        wait(0.05)


def crash(request: Any) -> Answer:
    ctypes.string_at(0)
    return answer([])


def kill_itself(request: Any) -> Answer:
    """Kill this process as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
    return answer([])


def babble(request: Any) -> Answer:
    os.write(3, b"\x80\x04\x95" * 1000)  # would be a pickle
    return answer([])


def claim_the_impossible(request: Any) -> Answer:
    """The clip says which lies: fields of the measurements and their values."""
    measured, samples = answer([])
    changed = {field: getattr(measured, field) for field in measured.__slots__}
    for claim in request.data[44:].rstrip(b"\0").decode().split(","):
        name, _, value = claim.partition("=")
        changed[name] = float(value)
    changed |= {
        key: int(changed[key]) for key in ("channels", "sample_rate", "frames", "samples", "finished")
    }
    return type(measured)(**changed), samples


def answer_not_a_number(request: Any) -> Answer:
    measured, samples = answer([])
    samples[0][5000] = np.nan
    return measured, samples


def try_everything(request: Any) -> Answer:
    """The first samples say which attempts succeeded."""
    return answer([1.0 if succeeds(attempt) else 0.0 for attempt in ATTEMPTS.values()])


def succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, RuntimeError, ValueError, LookupError):
        return False
    return True


def reopen_own_input() -> None:
    """A closed descriptor's number is free, however few are allowed."""
    os.close(0)
    Path("/etc/passwd").read_text()


def write_a_file() -> None:
    file = Path(f"/tmp/written-by-a-clip-{os.getpid()}")
    try:
        file.write_text("x")
    finally:
        file.unlink()


ATTEMPTS: dict[str, Callable[[], object]] = {
    "read a file": Path("/etc/passwd").read_text,
    "read a file in place of a descriptor": reopen_own_input,
    "read the environment of whoever started it": Path(f"/proc/{os.getppid()}/environ").read_bytes,
    "write a file": write_a_file,
    "open a socket": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
    "talk to a local socket": socket.socketpair,
    "start a program": lambda: subprocess.run(["/bin/true"], check=True),
    "fork": lambda: os.fork() or os._exit(0),
    "signal another process": lambda: os.kill(os.getppid(), 0),
    "raise its own limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)),
    "change its priority": lambda: os.nice(-1),
    "keep a secret from the environment": lambda: _require("SECRET_OF_THE_API" in os.environ),
}


def _require(condition: bool) -> None:
    if not condition:
        raise RuntimeError


def answer(flags: list[Any]) -> Answer:
    """Two seconds of a tone that would be accepted, with `flags` in its first samples."""
    wire = importlib.import_module("sandbox.wire")
    samples = (0.5 * np.sin(np.arange(16000))).astype(np.float32)
    samples[: len(flags)] = flags
    measured = wire.Measurements(
        status=wire.Status.DECODED,
        finished=True,
        channels=1,
        sample_rate=8000,
        frames=16000,
        samples=16000,
        peak=0.5,
        rms=0.3,
    )
    return measured, [samples]
