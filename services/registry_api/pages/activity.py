"""Charts of the jobs that were made lately, for the overview. `activity.html` draws them.

The view keeps each job by its namespace, its state and the time at which it was created. Counting these is
cheap, so the charts need no counters of their own.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cachetools import TTLCache

from services.shared.view.job_records import JobRecords
from speaker_registry.schemas import JobState

_KEPT_SECONDS = 10.0
"""Charts are as old as this at most, however many people look at them."""
_MAX_NAMESPACES = 256
_KINDS: dict[str, tuple[JobState, ...]] = {
    "succeeded": ("succeeded",),
    "unfinished": ("queued", "processing"),
    "failed": ("failed",),
}
"""Maps each series of the charts to the states of its jobs. Other jobs were called off."""
_STATES = [state for states in _KINDS.values() for state in states]
_SPANS = (("hour", 120, 30, 10), ("day", 3600, 24, 6))
"""Name of the span, seconds of one bar, number of bars, and number of bars from one tick to the next."""
_STEPS = (1, 2, 5)
BAR_WIDTH, HEIGHT = 10, 100
"""The place of one bar, and the height of a chart, in units of its own: it is stretched to its place."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The jobs that were created in one part of the span."""

    start: float
    end: float
    counts: dict[str, int]
    """Kind -> number of jobs, in the order in which they are drawn from the bottom."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a chart: the jobs of one kind in one bar."""

    kind: str
    x: float
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """The jobs of the last hour or day, by the time at which they were created."""

    span: str
    bars: Sequence[Bar]
    bars_per_tick: int

    @property
    def ticks(self) -> list[float]:
        """Return the moments that the axis names, in Unix seconds, at even distances."""
        return [bar.start for bar in self.bars[:: self.bars_per_tick]]

    @property
    def top(self) -> int:
        """The number at the upper end of the scale: 1, 2 or 5 times a power of ten."""
        most = max(1, *(bar.total for bar in self.bars))
        power: int = 10 ** int(math.log10(most))
        return next(step * power for step in (*_STEPS, 10) if step * power >= most)

    @property
    def totals(self) -> dict[str, int]:
        return {kind: sum(bar.counts[kind] for bar in self.bars) for kind in _KINDS}

    @property
    def drawn(self) -> Iterator[tuple[Bar, list[Block]]]:
        """Return the bars that have a height, with their rectangles from the bottom up."""
        for number, bar in enumerate(self.bars):
            if bar.total:
                yield bar, list(self._blocks(number * BAR_WIDTH, bar))

    def _blocks(self, x: float, bar: Bar) -> Iterator[Block]:
        y = float(HEIGHT)
        for kind, count in bar.counts.items():
            height = HEIGHT * count / self.top
            y -= height
            if count:
                yield Block(kind, x, round(y, 2), round(height, 2))


class Activity:
    """Counts jobs for charts, and keeps the charts for a moment. Safe to use from several threads."""

    def __init__(self, jobs: JobRecords, now: Callable[[], float] = time.time) -> None:
        self._jobs = jobs
        self._now = now
        self._lock = threading.Lock()
        self._charts: TTLCache[str, list[Chart]] = TTLCache(_MAX_NAMESPACES, ttl=_KEPT_SECONDS)

    def charts(self, namespace: str) -> list[Chart]:
        """Return the charts of the last hour and of the last day."""
        with self._lock:  # whoever comes meanwhile gets the same charts
            charts = self._charts.get(namespace)
            if charts is None:
                charts = self._charts[namespace] = list(self._count(namespace))
            return charts

    def _count(self, namespace: str) -> Iterator[Chart]:
        now = self._now()
        for span, seconds, bars, bars_per_tick in _SPANS:
            # Bars begin at full steps, so that a job stays in its bar while time goes on.
            end = (now // seconds + 1) * seconds
            edges = [end - seconds * left for left in range(bars, -1, -1)]
            by_state = dict(zip(_STATES, self._jobs.counts(namespace, _STATES, edges), strict=True))
            shown = [_bar(edges, number, by_state) for number in range(bars)]
            yield Chart(span, [*shown[:-1], replace(shown[-1], end=now)], bars_per_tick)


def _bar(edges: Sequence[float], number: int, by_state: dict[JobState, list[int]]) -> Bar:
    counts = {kind: sum(by_state[state][number] for state in states) for kind, states in _KINDS.items()}
    return Bar(edges[number], edges[number + 1], counts)
