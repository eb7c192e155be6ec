"""Threads that a process starts before it has work for them, and the refusal of a system to start one.

A system refuses at a limit on processes (systemd's `TasksMax`, Docker's `--pids-limit`), and when there is no
memory for the stack of a thread.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import structlog

log = structlog.get_logger(__name__)


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads all run. An ordinary pool starts each of them when it has work for it, and
    so might be refused one in the middle of that work.

    Raises:
        RuntimeError: the system has refused a thread.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    all_run = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(all_run.wait)
    except RuntimeError:
        all_run.abort()
        pool.shutdown(wait=False)
        raise
    all_run.wait()
    return pool


class BackgroundThread:
    """Runs one function after the other in a thread that begins with the first one and stays. It does not
    keep the process from ending.

    Threads are not started again and again, because one that is started while memory is short may die before
    Python notices that it runs. Whoever started it then waits forever.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, do: Callable[[], None]) -> None:
        """Run a function without waiting for it. Raises RuntimeError if the system has refused the thread."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self._waiting.put(do)

    def close(self) -> None:
        """End the thread after the functions that wait."""
        self._waiting.put(None)

    def _run(self) -> None:
        for do in iter(self._waiting.get, None):
            try:
                do()
            except Exception:
                log.exception("thread.failed", thread=self._name)  # the next function is run all the same


def is_thread_refused(error: RuntimeError) -> bool:
    """Return whether the error says that the system has refused a thread. Python has no class for that."""
    return str(error) == "can't start new thread"
