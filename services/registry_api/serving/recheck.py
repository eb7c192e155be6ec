"""Checks again that the caller of the current request may go on, because its key or session may have ended
since the request began.

`access.rules` sets the check, once it knows the caller. A request is checked again when its body has arrived,
when it has waited for something, and before it commits its first change or starts an extraction. Afterwards
it is not checked again: a request that has begun to change something may finish.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from anyio import from_thread

_BRIEF_SECONDS = 0.01
"""A request that goes on sooner than this has not waited."""

Check = Callable[[], Coroutine[Any, Any, object]]
"""A function that raises an error of the registry if the caller may not go on."""


@dataclass(slots=True)
class _Current:
    """The check of the current request."""

    check: Check
    may_commit: bool = False
    """True once the check before the first change has passed."""


_current: ContextVar[_Current | None] = ContextVar("current", default=None)


def set_check(check: Check | None) -> None:
    """Set the check of the current request. None means that there is no caller to check, as in a task that
    works for several requests.
    """
    _current.set(_Current(check) if check is not None else None)


async def check_after_wait(since: float) -> None:
    """Check the caller of the current request, if the request has waited since this time of the event loop.

    Does nothing if the request has begun to commit a change: an answer that its caller may not go on would
    deny that change. Raises the errors of the check.
    """
    current = _current.get()
    if current is None or current.may_commit:
        return
    if asyncio.get_running_loop().time() - since >= _BRIEF_SECONDS:
        await current.check()


def check_before_commit() -> None:
    """Check the caller of the current request. Call this in the thread that is about to commit a change or to
    start an extraction, which counts as a change.

    Only the first change of a request is checked: a request that has begun to change something may finish.
    For example, it may have ended its own key, and then ends the keys that this key made. Does nothing in a
    thread that belongs to no request. Raises the errors of the check.
    """
    current = _current.get()
    if current is not None and not current.may_commit:
        from_thread.run(current.check)
        current.may_commit = True
