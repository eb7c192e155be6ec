"""The severity of one history: the odds of every fault. They are drawn for each seed, so that faults also
come alone and in pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from random import Random


@dataclass(frozen=True, kw_only=True)
class Weather:
    """Probabilities: per call to store or Redis, per job handed out, or per step of the history."""

    # Per call to the store.
    store_refuses: float = 0.02
    store_forgets_to_answer: float = 0.02
    """It did what was asked, and its reply was lost."""
    store_lands_late: float = 0.02
    """The caller was told that it failed; it happens up to 15 minutes later."""
    store_hides: float = 0.01
    """An object that is there is said to be missing: once in its life."""
    store_omits: float = 0.01
    """A listing leaves out an object or a folder that is there: once in its life."""
    # Per call to Redis.
    redis_refuses: float = 0.01
    redis_forgets_to_answer: float = 0.01
    redis_repeats: float = 0.01
    """The client's own retry after a lost reply: the command runs twice."""
    # Per job handed out.
    job_vanishes: float = 0.02
    job_doubles: float = 0.05
    extraction_fails: float = 0.1
    extraction_is_hopeless: float = 0.05
    # Per step of the history.
    process_dies: float = 0.01
    redis_is_replaced: float = 0.003
    redis_takes_no_writes: float = 0.0
    """Its memory is full, or it is a replica now, for up to a minute. Only in histories that ask for it."""
    actor_hangs: float = 0.01
    object_is_cursed: float = 0.003
    """An object cannot be read any more, by nobody, until the world comes to rest."""
    bytes_are_lost: float = 0.005
    """The odds that a clip or an artifact is lost for good."""
    somebody_litters: float = 0.01
    """Somebody else puts an object into the bucket that is none of ours."""

    @classmethod
    def draw(cls, random: Random, known: Mapping[str, float]) -> "Weather":
        """Each fault is absent in a third of all histories, and twice as likely as usual in another third.
        `known`: odds that are not drawn.
        """
        usual = cls()
        odds = {field.name: getattr(usual, field.name) for field in fields(cls)}
        drawn = {name: one * random.randrange(3) for name, one in odds.items() if one}
        return replace(usual, **{**drawn, **known})


CALM = Weather(**{field.name: 0.0 for field in fields(Weather)})
