"""A small process with the decoding libraries imported that forks one guarded child for each clip. It never
reads a clip itself, has one thread, and ends when whoever started it does. Knows nothing of audio.
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
from .reading import Samples, Source, read_clip, warm_up
from .refusal import Refused
from .sniff import sniff
from .wire import HELLO, READY, UNFILTERED, Measurements, Request, pack_not_filtered, pack_refusal

_UNFILTERED = (
    "the processor, kernel or container rules out the seccomp filter: a clip that takes over its decoder can "
    "open nothing, but can make other system calls"
)

Read = Callable[[Source], tuple[Measurements, list[Samples]]]


def main() -> None:
    warm_up_clip = warm_up()
    serve(read_clip, *map(int, sys.argv[2:]), warm_up_clip=warm_up_clip)


def serve(
    read: Read,
    memory_bytes: int,
    cpu_seconds: int,
    filter_required: int,
    *,
    warm_up_clip: Request | None = None,
) -> None:
    """Fork a child for every socket handed over on descriptor 0, until the other end of that is closed.

    Args:
        memory_bytes: what a child may take beyond what the libraries take.
        cpu_seconds: of processor time for one clip.
        filter_required: 1 to read no clip where system calls cannot be filtered, else 0.
        warm_up_clip: a clip that a child reads while it waits for its own. A fork shares its pages, and each
            is copied when it is first written to: that takes longer than decoding.
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
        with suppress(OSError):  # no more processes: the asker sees its socket closed
            if os.fork() == 0:
                _child(
                    connection, parent, limits, bool(filter_required), read=read, warm_up_clip=warm_up_clip
                )
        connection.close()


def _warn_of_missing_filter() -> None:
    """Clips are decoded all the same. In the form of the API's log, where our stderr goes."""
    event = {"event": "decoder.unfiltered", "reason": _UNFILTERED, "level": "warning"}
    print(json.dumps(event | {"timestamp": datetime.now(UTC).isoformat()}), file=sys.stderr, flush=True)


def _prepare_to_fork() -> None:
    # A Ctrl-C, a closing terminal or a service manager signals all of us. The API process decides when we
    # end: by closing the control socket, which the kernel also does when it is killed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    with suppress(OSError):  # when memory is short, lose a clip rather than the API
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
                read(Source.of(sniff(warm_up_clip.data), warm_up_clip.max_seconds))
            _answer(Request.receive(connection), connection, read)
        else:
            Request.receive(connection)  # ending before it is sent would pass for a crash by the clip
            connection.sendall(pack_not_filtered())
    finally:
        os._exit(0)  # also after an exception: there is nobody to tell, a missing answer says it


def _answer(request: Request, connection: socket.socket, read: Read) -> None:
    try:
        sniffed = sniff(request.data)
    except Refused as refused:
        connection.sendall(pack_refusal(refused))
        return
    connection.sendall(sniffed.accepted.pack())
    measured, samples = read(Source.of(sniffed, request.max_seconds))
    connection.sendall(measured.pack())
    for block in samples:
        connection.sendall(block.data)
