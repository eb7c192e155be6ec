"""Runs ordinary synchronous code as actors, one step at a time, in an order that only the caller decides.

An actor pauses before every call that leaves its process. There it can be left for as long as the caller
likes, or killed as `kill -9` would: nothing it does afterwards, in `finally` or `except`, leaves the process
any more. Knows no store, no Redis and no speakers.
"""

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """The actor's process is gone. No `except Exception` sees it."""


class Actor:
    """A piece of work on its way. `calling`: what it is about to do; None before its first call."""

    def __init__(self, name: str, work: Callable[[], Any], owner: Any) -> None:
        self.name = name
        self.owner = owner
        self.calling: str | None = None
        self.asleep_until = 0.0
        self.killed = False
        self.error: BaseException | None = None
        self.result: Any = None
        self.request: Any = None
        """The request that it serves, if there is one."""
        self.then: Callable[[str], None] = lambda outcome: None
        """Called with how it ended."""
        self._work = work
        self._greenlet = greenlet(self._run)
        self._greenlet.actor = self

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Killed:
            self.killed = True
        except BaseException as error:  # noqa: BLE001 - whoever spawned it decides what that means
            self.error = error

    @property
    def done(self) -> bool:
        return bool(self._greenlet.dead)

    @property
    def waiting(self) -> bool:
        """True if it is in the middle of something: it has made a call, or is about to make its first."""
        return self.calling is not None and not self.done

    def step(self) -> None:
        """Run to the next pause, or to the end."""
        self._greenlet.switch()

    def kill(self) -> None:
        if not self.done:
            self.killed = True
            if self._greenlet:
                self._greenlet.throw(Killed)
            else:
                self._greenlet.throw()  # never started: there is nothing to unwind


def current() -> Actor | None:
    """The actor that is running; None in whoever runs the actors."""
    return getattr(getcurrent(), "actor", None)


def pause(call: str) -> None:
    """Called before everything that leaves the process. Raises `Killed` if the actor's time is over."""
    actor = current()
    if actor is None:
        return
    if actor.killed:
        raise Killed
    actor.calling = call
    actor._greenlet.parent.switch()
    if actor.killed:
        raise Killed
