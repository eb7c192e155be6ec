"""Threads that a process starts before it has work for them, and the refusal of a system to start one.

A system refuses at a limit on processes (systemd's `TasksMax`, Docker's `--pids-limit`), and when there is no
memory for the stack of a thread.
"""

import threading
from concurrent.futures import ThreadPoolExecutor


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


def is_thread_refused(error: RuntimeError) -> bool:
    """Return whether the error says that the system has refused a thread. Python has no class for that."""
    return str(error) == "can't start new thread"
