"""The faults of one history, and how often they happen. Each seed draws its own around a theme."""

from dataclasses import dataclass, fields, replace
from random import Random


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
    somebody_litters: float = 0.002
    encoder_changes: float = 0.0005

    @classmethod
    def draw(cls, random: Random) -> "Weather":
        """Each fault is absent in a third of all histories, and twice as likely as usual in another third."""
        drawn = {one.name: getattr(cls(), one.name) * random.randrange(3) for one in fields(cls)}
        for name, odds in random.choice(list(THEMES.values())).items():
            drawn[name] = odds
        return replace(cls(), **drawn)


THEMES: dict[str, dict[str, float]] = {
    "all at once": {},
    "two primaries": {"redis_changes": 0.008, "call_comes_late": 0.0},
    "a store that is late": {"call_comes_late": 0.1, "reply_is_lost": 0.1},
    "a store that is behind": {"node_is_behind": 0.12, "reply_is_lost": 0.1, "call_comes_late": 0.0},
    "machines that stop": {"machine_stops": 0.015, "actor_stops": 0.05},
    "processes that die": {"process_dies": 0.01, "reply_is_lost": 0.1},
    "Redis": {"redis_changes": 0.012, "redis_reply_is_lost": 0.02},
}
"""The themes, each with its odds in place of the drawn ones. They let rare faults meet."""

CALM = Weather(**{one.name: 0.0 for one in fields(Weather)})
