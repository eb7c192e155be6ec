"""Counts the answers with a status of 500 or above, by namespace and minute, for the overview.

Each process keeps its counts for some seconds and then adds them to those in Redis, where they expire. This
module knows no routes. Requests that are refused before their key is checked have no namespace, and only the
metrics count them.
"""

import threading
from collections.abc import Sequence
from itertools import pairwise

import structlog

from services.shared.model.clock import Clock
from services.shared.telemetry.logs import LogThrottle
from services.shared.view.generation import Generation
from services.shared.view.keys import server_errors_key
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

WRITE_SECONDS = 10.0
"""The counts of a process are added to those in Redis this often."""
MINUTE, HOUR = 60, 3600
KEPT_SECONDS = 2 * HOUR
"""The counts of an hour expire this long after the last one was added."""
_MAX_COUNTS = 10_000
"""Errors of further namespaces and minutes are not counted. A key for any namespace can name many of them."""
_throttle = LogThrottle(60.0)


class ServerErrors:
    """The numbers of errors. Safe to use from several threads; `note` does no I/O.

    While they cannot be written, the counts stay in this process. If Redis added them but its reply was
    lost, they are added twice.
    """

    def __init__(self, generation: Generation, clock: Clock) -> None:
        self._generation = generation
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._counts: dict[tuple[str, int], int] = {}

    def note(self, namespace: str) -> None:
        """Count an error that was answered just now."""
        counted = namespace, int(self._clock.now()) // MINUTE * MINUTE
        with self._lock:
            if counted in self._counts or len(self._counts) < _MAX_COUNTS:
                self._counts[counted] = self._counts.get(counted, 0) + 1

    def run(self, stop: threading.Event) -> None:
        """Write the counts repeatedly until `stop` is set, and then once more."""
        while not stop.wait(WRITE_SECONDS):
            self.write()
        self.write()

    def write(self) -> None:
        """Add to the counts in Redis the errors that were noted since the last call. If that fails, the next
        call adds them.
        """
        with self._writing:  # a concurrent call returns after all earlier errors are written
            with self._lock:
                self._counts, counts = {}, self._counts
            try:
                if counts:
                    self._add(counts)
            except Exception as error:  # the thread that calls this must not end
                with self._lock:
                    for counted, number in counts.items():
                        self._counts[counted] = self._counts.get(counted, 0) + number
                if isinstance(error, Unavailable):
                    log.info("server_errors.not_written", errors=sum(counts.values()))
                elif _throttle.due("failed"):
                    log.exception("server_errors.failed", errors=sum(counts.values()))

    def _add(self, counts: dict[tuple[str, int], int]) -> None:
        self._generation.read(
            lambda pipeline, generation: [
                (
                    pipeline.hincrby(key, str(minute), number),
                    pipeline.expire(key, KEPT_SECONDS),
                )
                for (namespace, minute), number in counts.items()
                for key in [server_errors_key(generation, namespace, minute // HOUR)]
            ]
        )

    def counts(self, namespace: str, edges: Sequence[float]) -> list[int]:
        """Count the errors of a namespace, as far as they were written and are kept.

        Args:
            edges: moments in Unix seconds at full minutes, in ascending order.

        Returns:
            The number of errors from each of `edges` (inclusive) until the next one (exclusive). Raises
            `ViewAway` or `Unavailable`.
        """
        hours = range(int(edges[0]) // HOUR, int(edges[-1]) // HOUR + 1)
        found = self._generation.read(
            lambda pipeline, generation: [
                pipeline.hgetall(server_errors_key(generation, namespace, hour)) for hour in hours
            ]
        )
        minutes = {int(minute): int(number) for counts in found for minute, number in counts.items()}
        return [
            sum(number for minute, number in minutes.items() if start <= minute < end)
            for start, end in pairwise(edges)
        ]
