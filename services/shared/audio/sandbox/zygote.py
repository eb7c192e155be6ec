"""The zygote: a small process that has imported the decoding libraries and forks one guarded child for each
clip.

It never reads a clip itself, has one thread, and ends together with its parent.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from . import lockdown
from .reading import Samples, read_clip, warm_up
from .refusal import Refused
from .sniff import sniff
from .sniffed import Sniffed
from .wire import HELLO, READY, UNFILTERED, Measurements, Request, pack_not_filtered, pack_refusal

_UNFILTERED = (
    "the processor, kernel or container rules out the seccomp filter: a clip that takes over its decoder can "
    "open nothing, but can make other system calls"
)

Read = Callable[[Sniffed, float], tuple[Measurements, list[Samples]]]


def main() -> None:
    warm_up_clip = warm_up()
    with suppress(BrokenPipeError):  # the parent has ended meanwhile
        serve(read_clip, *map(int, sys.argv[2:]), warm_up_clip=warm_up_clip)


def serve(
    read: Read,
    memory_bytes: int,
    cpu_seconds: int,
    filter_required: int,
    *,
    warm_up_clip: Request | None = None,
) -> None:
    """Fork a child for every socket received on descriptor 0, until the other end of the descriptor is
    closed.

    Args:
        memory_bytes: Memory that a child may use beyond the libraries.
        cpu_seconds: Processor time that a child may use for one clip.
        filter_required: 1 to refuse to work where system calls cannot be filtered, else 0.
        warm_up_clip: A clip that a child reads while it waits for its own. A fork shares memory pages, and
            each page is copied on the first write, which would take longer than decoding.
    """
    control = socket.socket(fileno=0)
    filtered = lockdown.can_forbid_system_calls()
    if filter_required and not filtered:
        control.send(UNFILTERED)
        return
    if not filtered:
        _warn_of_missing_filter()
    _prepare_to_fork()
    limits = memory_bytes + _address_space(), cpu_seconds
    control.send(READY)
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        connection = socket.socket(fileno=descriptors[0])
        parent = os.getpid()
        with suppress(OSError):  # the system cannot fork: the parent sees that the socket is closed
            if os.fork() == 0:
                _child(
                    connection, parent, limits, bool(filter_required), read=read, warm_up_clip=warm_up_clip
                )
        connection.close()


def _warn_of_missing_filter() -> None:
    """Warn that clips are decoded without the filter. The line has the form of the API's log, to which
    stderr leads.
    """
    event = {"event": "decoder.unfiltered", "reason": _UNFILTERED, "level": "warning"}
    print(json.dumps(event | {"timestamp": datetime.now(UTC).isoformat()}), file=sys.stderr, flush=True)


def _prepare_to_fork() -> None:
    # Ctrl-C, a closing terminal and service managers signal all processes. The API process alone decides when
    # the zygote ends, by closing the control socket. The kernel closes it too if the API process is killed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    with suppress(OSError):  # if memory runs out, a clip is lost rather than the API
        Path("/proc/self/oom_score_adj").write_text("1000")
    gc.disable()  # a child lives for milliseconds; a collection would copy every page it touches
    gc.freeze()


def _address_space() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def _child(
    connection: socket.socket,
    parent: int,
    limits: tuple[int, int],
    filter_required: bool,
    *,
    read: Read,
    warm_up_clip: Request | None,
) -> NoReturn:
    try:
        lockdown.die_with(parent)
        socket.send_fds(connection, [HELLO], [os.pidfd_open(os.getpid())])
        connection = lockdown.keep_only(connection)
        lockdown.limit_resources(*limits)
        if lockdown.forbid_system_calls() or not filter_required:
            if warm_up_clip:
                read(sniff(warm_up_clip.data), warm_up_clip.max_seconds)
            _answer(Request.receive(connection), connection, read)
        else:
            Request.receive(
                connection
            )  # an end before the request would look like a crash caused by the clip
            connection.sendall(pack_not_filtered())
    finally:
        os._exit(0)  # also after an exception, which the parent notices by the missing answer


def _answer(request: Request, connection: socket.socket, read: Read) -> None:
    try:
        sniffed = sniff(request.data)
    except Refused as refused:
        connection.sendall(pack_refusal(refused))
        return
    connection.sendall(sniffed.accepted.pack())
    measured, samples = read(sniffed, request.max_seconds)
    connection.sendall(measured.pack())
    for block in samples:
        connection.sendall(block.data)
