"""What made an artifact, besides the clip: facts, and the one name that they have. Knows no encoder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from speaker_registry.artifact import canonical_json, sha256_digest


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that determines an artifact besides the clip.

    facts: plain JSON values. `facts["weights"]["untrained"]` says whether the weights are random, and
    `facts["weights"]["custom"]` whether they are meant to differ from the published ones.
    """

    facts: Mapping[str, Any]

    @classmethod
    def of(cls, **facts: Any) -> Self:
        """Tuples become lists, as they will be after a trip through a manifest."""
        return cls(json.loads(canonical_json(facts)))

    @property
    def digest(self) -> str:
        """`sha256:…` over the facts as canonical JSON."""
        return sha256_digest(canonical_json(self.facts).encode())

    @property
    def untrained(self) -> bool:
        return bool(self.facts["weights"]["untrained"])

    @property
    def custom_weights(self) -> bool:
        """False also for facts that say nothing of weights, as those of an uploaded artifact may."""
        weights = self.facts.get("weights")
        return isinstance(weights, Mapping) and weights.get("custom") is True
