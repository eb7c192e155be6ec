"""Ends a process at once, without waiting for its threads or tearing down the interpreter."""

import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from threading import Thread
from typing import NoReturn

_STOPS = (signal.SIGTERM, signal.SIGINT)


def end_process(status: int) -> NoReturn:
    """End the process at once, whatever its threads do. Its log lines are written first."""
    for write_out in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        # The process must end all the same. For example, if a signal interrupted a write to a stream,
        # flushing that stream raises RuntimeError.
        with suppress(Exception):
            write_out()
    os._exit(status)


def end_on_signals() -> None:
    """End the process with status 0 on SIGTERM and SIGINT, until other handlers are set. Supervisors take an
    end by the signal itself for a crash.

    A handler runs only between two steps of the main thread's Python code. That thread may spend minutes in a
    library that fetches or loads weights, so another thread waits for the signals as well.
    """
    told, teller = socket.socketpair()
    teller.setblocking(False)
    for number in _STOPS:
        signal.signal(number, _end)
    signal.set_wakeup_fd(teller.detach())
    Thread(target=_end_when_told, args=(told,), name="signals", daemon=True).start()


def _end(*_: object) -> NoReturn:
    end_process(0)


def _end_when_told(told: socket.socket) -> None:
    while numbers := told.recv(16):
        if any(signal.getsignal(number) is _end for number in numbers):
            end_process(0)
