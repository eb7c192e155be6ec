"""Single flight: of several calls that ask for the same artifact at the same time, one sends the request.

This module does no I/O, and works for threads and for asyncio alike.
"""

import threading
from collections.abc import Hashable
from concurrent.futures import Future

from speaker_registry.artifact import Artifact
from speaker_registry.errors import SpeakerRegistryError, Unavailable
from speaker_registry.exchange import Plan
from speaker_registry.forks import renew_after_fork


class Flight:
    """One request under way, and its result."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.done: Future[None] = Future()
        self.artifact: Artifact | None = None
        self.error: SpeakerRegistryError | None = None

    def answers(self, called_at: float) -> bool:
        """Return whether the result is valid for a call that began at `called_at`.

        A result of an earlier request may miss a change that the caller knows of.
        """
        if isinstance(self.error, Unavailable):
            return True
        return self.began_at >= called_at and (self.artifact or self.error) is not None

    def result(self) -> Artifact:
        """Return the artifact, or raise the error of the request."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.artifact is not None, "only a result that answers is read"
        return self.artifact


class Flights:
    """The requests of one client that are under way."""

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self, Flights._begin)  # the threads that lead flights exist only in the parent

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Flight] = {}

    def join(self, question: Hashable, now: float) -> tuple[Flight, bool]:
        """Return the flight for a question, and whether the caller began it and has to `lead` it."""
        with self._lock:
            flight = self._flights.get(question)
            if flight is not None:
                return flight, False
            self._flights[question] = flight = Flight(now)
            return flight, True

    def lead(self, question: Hashable, flight: Flight, plan: Plan[Artifact]) -> Plan[Artifact]:
        """Execute the plan, and give its result to all calls that joined. An interrupted plan has none."""
        try:
            flight.artifact = yield from plan
        except SpeakerRegistryError as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                if self._flights.get(question) is flight:  # else it is a flight of the parent process
                    del self._flights[question]
            flight.done.set_result(None)
        return flight.artifact
