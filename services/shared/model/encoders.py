"""The rules that decide which encoder makes the artifacts of a profile. Pure: no clock, no bucket, no Redis.

An encoder is known by its fingerprint. One encoder of each profile is *current*: its artifacts are made and
served. The encoders that were current before are *former* ones. Any other encoder is a *candidate*, which
changes nothing until an operator promotes it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from services.shared.model.fingerprint import Fingerprint
from services.shared.model.records import Record

MAX_FORMER = 10
"""Largest number of former encoders that are remembered. Their newest artifacts may still be served."""
MAX_DIFFERENCES = 50
"""Largest number of differing inputs that are shown for a candidate."""
ABSENT = None
"""This value is shown for an input that one of two encoders does not have."""


class Encoder(Record):
    """An encoder, which makes the artifacts of a profile."""

    profile: str
    fingerprint: str
    extractor: dict[str, Any] = Field(default_factory=dict)
    """The inputs of the fingerprint."""
    untrained: bool = False

    @property
    def custom_weights(self) -> bool:
        """True if the profile is made with weights that are meant to differ from the published ones."""
        return Fingerprint(self.extractor).custom_weights


def takes_over(current: Encoder | None, arriving: Encoder, *, first: bool) -> bool:
    """Return whether the encoder of a worker becomes the current one without an operator.

    The first encoder of a profile does. An encoder with trained weights does as well, if the current one has
    untrained weights or a damaged record. In all other cases an operator decides.

    Args:
        current: the current encoder. None if there is none, or if its record cannot be read.
        first: whether the profile never had an encoder.
    """
    return first or (not arriving.untrained and (current is None or current.untrained))


def former_after(current: Encoder | None, former: tuple[str, ...], successor: str) -> tuple[str, ...]:
    """Return the fingerprints that were current before `successor`, newest first.

    Args:
        current: the encoder that the successor replaces.
        former: the fingerprints that were current before that one.
    """
    if current is None:
        return ()
    before = dict.fromkeys((current.fingerprint, *former))
    return tuple(one for one in before if one != successor)[:MAX_FORMER]


def differences(current: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the inputs in which two encoders differ, as dotted name -> (value of the current encoder, value
    of the candidate).

    An input that only one of them has is None for the other. At most `MAX_DIFFERENCES` are returned.
    """
    before, after = dict(_flat(current)), dict(_flat(candidate))
    names = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    return {name: (before.get(name, ABSENT), after.get(name, ABSENT)) for name in names[:MAX_DIFFERENCES]}


def _flat(inputs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in inputs.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
