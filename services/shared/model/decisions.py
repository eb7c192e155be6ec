"""The decisions that made an encoder the current one of its profile, and their authors and times. Pure.

Only such a decision changes the bytes that engines receive for a version of a voice, so the profile's
document remembers the last decisions. `past` finds the decisions that concern one voice.
"""

from collections.abc import Iterable
from typing import Protocol

from services.shared.model.encoders import Encoder
from services.shared.model.records import Record, Revised

KEPT_DECISIONS = 100
"""Largest number of decisions that a document remembers. Each takes about 300 bytes."""
ANNOUNCED, REPLACED_UNTRAINED, PROMOTED, ROLLED_BACK = "announce", "replace_untrained", "promote", "roll_back"
"""The kinds of decisions. `StoredDocument.did` is `ANNOUNCED` for every change that a worker makes when it
starts.
"""


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


class Preparing(Protocol):
    """The parts of a campaign that decisions are made from."""

    @property
    def id(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def promotes_by(self) -> str: ...


class Deciding(Revised, Protocol):
    """The parts of a profile's document that its decisions are made from."""

    @property
    def current(self) -> Encoder | None: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def former_fingerprints(self) -> tuple[str, ...]: ...
    @property
    def campaigns(self) -> Iterable[Preparing]: ...
    @property
    def decisions(self) -> tuple[Decision, ...]: ...


def decided(before: Deciding, after: Deciding) -> tuple[Decision, ...]:
    """Return the decisions of a document, including the change that made it from `before`."""
    if after.fingerprint == before.fingerprint:
        return after.decisions
    campaign = _campaign(after)
    asked_by = campaign.promotes_by if campaign and campaign.state == "promoted" else ""
    decision = Decision(
        revision=after.revision,
        at=after.at,
        by=asked_by or after.by,
        did=_kind(before, after),
        fingerprint=after.fingerprint,
        former_fingerprint=before.fingerprint,
        campaign=campaign.id if campaign else None,
    )
    return (*after.decisions, decision)[-KEPT_DECISIONS:]


def _kind(before: Deciding, after: Deciding) -> str:
    if after.did == ANNOUNCED:
        return REPLACED_UNTRAINED if before.current else ANNOUNCED
    return ROLLED_BACK if after.fingerprint in before.former_fingerprints else PROMOTED


def _campaign(after: Deciding) -> Preparing | None:
    """Return the campaign that prepared the voices for the encoder that has become current.

    A campaign prepares one promotion. If the encoder becomes current again later, that is a separate
    decision.
    """
    named = {one.campaign for one in after.decisions}
    found = [one for one in after.campaigns if one.fingerprint == after.fingerprint]
    return next((one for one in found[::-1] if one.state != "canceled" and one.id not in named), None)
