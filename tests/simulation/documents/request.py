"""One piece of work in a simulated world: what it is, who does it, and what was done to it on the way."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.simulation import scheduler

PATIENCE_SECONDS = 60.0
"""Nobody waits for an answer for longer than this."""


@dataclass(eq=False)
class Request:
    """A request of a client, or a piece of work of a worker or of housekeeping."""

    kind: str
    name: str
    """The name of the voice that it is about."""
    process: Any
    began: float
    order: int = 0
    """How many events there were when it began. Many things happen at one time of the world's clock."""
    started: float = float("inf")
    """The time at which its process took it up. Before that no rule can date it."""
    answered: float | None = None
    is_dead: bool = False
    """True for an upload whose version a delete covers that was carried out."""
    was_lied_to: bool = False
    """True if an answer of the store to it came from a node that was behind."""
    stood_still: bool = False
    """True if its machine stood still meanwhile, with its clocks."""
    met_no_view: bool = False
    """True if Redis failed meanwhile, or its view was not to be used, so that the bucket was asked."""
    read_from: str = ""
    """The generation whose view it read last."""
    commits: Counter[Any] = field(default_factory=Counter)

    def was_over_before(self, moment: float) -> bool:
        """Return whether its caller had an answer, or had given up, before this moment."""
        answered = self.answered is not None and self.answered < moment
        return answered or self.started + PATIENCE_SECONDS < moment


def current_request() -> Request | None:
    """Return the request of the actor that is running."""
    actor = scheduler.current()
    return actor.request if actor else None
