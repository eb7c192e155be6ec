"""The decisions that made an encoder the current one of its profile, and their authors and times. Pure.

Only such a decision changes the bytes that engines receive for a version of a voice, so the profile's
document remembers the last decisions. `past` finds the decisions that concern one voice.
"""

from services.shared.model.records import Record

KEPT_DECISIONS = 100
"""Largest number of decisions that a document remembers. Each takes about 300 bytes."""


class Decision(Record):
    """One decision that made an encoder the current one."""

    revision: int
    """The revision of the profile's document that the decision made."""
    at: int
    by: str
    """Id of the caller, or name of the worker, that made the decision."""
    did: str
    """The kind of decision. `announce`: the profile's first worker announced the encoder.
    `replace_untrained`: a worker with trained weights replaced random ones. `promote`: the encoder was
    promoted. `roll_back`: an encoder that was current before was promoted again.
    """
    fingerprint: str
    former_fingerprint: str = ""
    """The encoder that was current before. Empty if there was none."""
    campaign: str | None = None
    """Id of the campaign that prepared the promotion."""

    @property
    def is_promotion(self) -> bool:
        """True if the encoder took the place of another one, whose artifacts were served before."""
        return bool(self.former_fingerprint)
