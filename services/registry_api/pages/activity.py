"""Charts of recently created jobs and of the API's errors, for the overview. `activity.html` draws them.

The view keeps each job by its namespace, its state and the time at which it was created. Counting these is
cheap, so the charts of jobs need no counters of their own. `ServerErrors` counts errors.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.registry_api.pages.kept import Kept
from services.registry_api.serving.server_errors import ServerErrors
from services.shared.view.job_records import JobRecords
from speaker_registry.schemas import JobState

_KINDS: dict[str, tuple[JobState, ...]] = {
    "succeeded": ("succeeded",),
    "unfinished": ("queued", "processing"),
    "failed": ("failed",),
}
"""Maps each series of the charts to the states of its jobs. Other jobs were canceled or superseded."""
_STATES = [state for states in _KINDS.values() for state in states]
_Span = tuple[str, int, int, int]
_HOUR: _Span = ("hour", 120, 30, 10)
_DAY: _Span = ("day", 3600, 24, 6)
"""Name of the span, seconds of one bar, number of bars, and number of bars from one tick to the next."""
_STEPS = (1, 2, 5)
BAR_WIDTH, HEIGHT = 10, 100
"""The width of the space for one bar, and the height of a chart. The units are arbitrary, because the chart
is stretched to fit.
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """The jobs that were created, or the errors that happened, in one part of the span."""

    start: float
    end: float
    counts: dict[str, int]
    """Kind -> number, in the order in which they are drawn from the bottom."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a chart, which stands for everything of one kind in one bar."""

    kind: str
    x: float
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """The jobs of the last hour or day, by the time at which they were created, or the errors."""

    span: str
    bars: Sequence[Bar]
    bars_per_tick: int

    @property
    def ticks(self) -> list[float]:
        """Return the moments at which the axis has labels, in Unix seconds, at equal distances."""
        return [bar.start for bar in self.bars[:: self.bars_per_tick]]

    @property
    def top(self) -> int:
        """The number at the upper end of the scale: 1, 2 or 5 times a power of ten."""
        most = max(1, *(bar.total for bar in self.bars))
        power: int = 10 ** int(math.log10(most))
        return next(step * power for step in (*_STEPS, 10) if step * power >= most)

    @property
    def totals(self) -> dict[str, int]:
        return {kind: sum(bar.counts[kind] for bar in self.bars) for kind in self.bars[0].counts}

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
    """Counts for charts, and keeps the charts for a moment. Safe to use from several threads."""

    def __init__(self, jobs: JobRecords, errors: ServerErrors, now: Callable[[], float]) -> None:
        self._jobs = jobs
        self._errors = errors
        self._now = now
        self._charts = Kept(lambda namespace: [self._of_jobs(namespace, span) for span in (_HOUR, _DAY)])
        self._error_charts = Kept(self._of_errors)

    def charts(self, namespace: str) -> list[Chart]:
        """Return the charts of the jobs of the last hour and of the last day."""
        return self._charts.of(namespace)

    def errors(self, namespace: str) -> Chart:
        """Return the chart of the requests of the last hour that the API answered with 500 or above."""
        return self._error_charts.of(namespace)

    def _of_jobs(self, namespace: str, span: _Span) -> Chart:
        now = self._now()
        edges = _edges(span, now)
        by_state = dict(zip(_STATES, self._jobs.counts(namespace, _STATES, edges), strict=True))
        by_kind = {
            kind: [sum(counts) for counts in zip(*(by_state[state] for state in states), strict=True)]
            for kind, states in _KINDS.items()
        }
        return _chart(span, edges, now, by_kind)

    def _of_errors(self, namespace: str) -> Chart:
        now = self._now()
        edges = _edges(_HOUR, now)
        return _chart(_HOUR, edges, now, {"failed": self._errors.counts(namespace, edges)})


def _edges(span: _Span, now: float) -> list[float]:
    """Return where the bars of a span begin, and where the last one ends."""
    _, seconds, bars, _ = span
    # Bars begin at full steps, so that a job stays in its bar while time goes on.
    end = (now // seconds + 1) * seconds
    return [end - seconds * left for left in range(bars, -1, -1)]


def _chart(span: _Span, edges: Sequence[float], now: float, by_kind: dict[str, list[int]]) -> Chart:
    bars = [
        Bar(start, min(end, now), {kind: counts[number] for kind, counts in by_kind.items()})
        for number, (start, end) in enumerate(pairwise(edges))
    ]
    return Chart(span[0], bars, span[3])
