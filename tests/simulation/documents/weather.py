"""The faults of one history, and how often they happen. Each seed draws its own around a theme."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """What a history is about. It lets rare faults meet."""

    odds: Mapping[str, float] = field(default_factory=dict)
    """The odds of some faults, in place of the drawn ones."""
    errands: Mapping[str, float] = field(default_factory=dict)
    """How often each piece of work begins, if only these do. By default all do, as often as the seed says."""
    redis: tuple[str, ...] = ()
    """What becomes of Redis. By default everything that can."""
    step_seconds: float = 0.05
    """The time from one step to the next, on average."""

    @property
    def is_narrow(self) -> bool:
        """Return whether no other faults happen than those of the theme."""
        return bool(self.errands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """The odds of faults: of the store and of Redis at each call, of the rest at each step of a history."""

    request_is_lost: float = 0.015
    reply_is_lost: float = 0.04
    """The store does what it is told, and the caller hears an error. A proxy may repeat the call later."""
    call_comes_late: float = 0.02
    """The caller hears an error, and the store does what it is told after seconds or days."""
    node_is_behind: float = 0.03
    """The next answers about an object come from a node that knows an older state of it."""
    listing_lacks_half: float = 0.04
    swap_is_refused: float = 0.01
    """The store answers that another call was under way, although nothing has changed."""
    body_is_cut: float = 0.005
    redis_call_is_lost: float = 0.002
    redis_reply_is_lost: float = 0.002
    redis_call_is_repeated: float = 0.004
    redis_changes: float = 0.004
    """Redis is emptied, rolled back, restarted, doubled, exchanged, or cannot be reached by some."""
    process_dies: float = 0.002
    actor_stops: float = 0.015
    machine_stops: float = 0.0015
    """A process stands still. Its clocks stand still with it, or count the time as a suspended machine's."""
    artifact_is_lost: float = 0.002
    document_is_damaged: float = 0.0002
    document_is_newer: float = 0.0003
    """A newer release writes a document that this one does not understand, and takes that back later."""
    view_is_damaged: float = 0.0003
    """`_view.json` names no generation any more."""
    somebody_litters: float = 0.002
    encoder_changes: float = 0.0005
    clock_is_set: float = 0.002
    """Somebody sets the clock of a process or of Redis, by days and also back."""

    @classmethod
    def draw(cls, random: Random, theme: Theme) -> "Weather":
        """Each fault is absent in a third of all histories, and twice as likely as usual in another third."""
        if theme.is_narrow:
            return replace(CALM, **theme.odds)
        drawn = {one.name: getattr(cls(), one.name) * random.randrange(3) for one in fields(cls)}
        return replace(cls(), **{**drawn, **theme.odds})


CALM = Weather(**{one.name: 0.0 for one in fields(Weather)})

THEMES: dict[str, Theme] = {
    "all at once": Theme(),
    "two primaries": Theme(odds={"redis_changes": 0.008, "call_comes_late": 0.0}),
    "a store that is late": Theme(odds={"call_comes_late": 0.1, "reply_is_lost": 0.1}),
    "a store that is behind": Theme(
        odds={"node_is_behind": 0.12, "reply_is_lost": 0.1, "call_comes_late": 0.0}
    ),
    "machines that stop": Theme(odds={"machine_stops": 0.015, "actor_stops": 0.05}),
    "processes that die": Theme(odds={"process_dies": 0.01, "reply_is_lost": 0.1}),
    "Redis": Theme(odds={"redis_changes": 0.012, "redis_reply_is_lost": 0.02}),
    "uploads and deletes whose machines stand still": Theme(
        odds={"machine_stops": 0.03}, errands={"register": 6, "delete": 3, "undelete": 1}
    ),
    "sweeps, and machines that stand still": Theme(
        odds={"machine_stops": 0.03}, errands={"register": 5, "work": 4, "sweep": 6, "settle": 1}
    ),
    "sweeps, and uploads that stop": Theme(
        odds={"actor_stops": 0.06}, errands={"register": 5, "work": 4, "sweep": 6, "settle": 1}
    ),
    "uploads and deletes that stop": Theme(
        odds={"actor_stops": 0.08}, errands={"register": 6, "delete": 4, "delete version": 2}
    ),
    "uploads that come after their delete": Theme(
        odds={"call_comes_late": 0.5, "process_dies": 0.02, "actor_stops": 0.03},
        errands={"register": 3, "delete": 6},
    ),
    "lost replies": Theme(
        odds={"reply_is_lost": 0.3},
        errands={"register": 3, "alias": 5, "delete": 2, "undelete": 3, "delete version": 2, "read": 1},
    ),
    "many changes at once": Theme(
        odds={"swap_is_refused": 0.1}, errands={"register": 6, "alias": 3, "delete": 1, "read": 3, "work": 3}
    ),
    "Redis that is emptied": Theme(
        odds={"redis_changes": 0.02},
        errands={"register": 3, "alias": 5, "read": 8, "rebuild": 0.3},
        redis=("emptied",),
    ),
    "Redis that is rolled back": Theme(
        odds={"redis_changes": 0.01},
        errands={"register": 3, "alias": 5, "read": 8, "rebuild": 0.3},
        redis=("rolled back",),
    ),
    "Redis that is doubled": Theme(
        odds={"redis_changes": 0.02},
        errands={"register": 3, "alias": 6, "delete": 1, "read": 8},
        redis=("doubled", "exchanged"),
        step_seconds=0.01,
    ),
    "Redis whose replies are lost": Theme(
        odds={"redis_call_is_lost": 0.02, "redis_reply_is_lost": 0.03},
        errands={"register": 3, "work": 6, "alias": 3, "read": 5, "settle": 1},
    ),
    "artifacts that seem to be lost": Theme(
        odds={"node_is_behind": 0.04}, errands={"register": 1, "work": 8, "read": 12}
    ),
    "promotion policies": Theme(
        odds={"reply_is_lost": 0.1},
        errands={"register": 4, "promotion": 2, "alias": 1, "work": 8, "settle": 1},
    ),
    "artifacts that are lost": Theme(
        odds={"artifact_is_lost": 0.03}, errands={"register": 1, "work": 8, "read": 8, "cancel": 3}
    ),
}
"""The themes by name. A narrow one has little work and few faults, but these often."""
