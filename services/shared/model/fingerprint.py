"""Fingerprints of encoders: everything that determines an artifact besides the clip. This module knows no
encoder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from speaker_registry.artifact import canonical_json, sha256_digest


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that determines an artifact besides the clip."""

    inputs: Mapping[str, Any]
    """Plain JSON values. `inputs["weights"]["untrained"]` says whether the weights are random, and
    `inputs["weights"]["custom"]` whether they are meant to differ from the published ones.
    """

    @classmethod
    def of(cls, **inputs: Any) -> Self:
        """Return the fingerprint of these inputs. Tuples become lists, as in a manifest."""
        return cls(json.loads(canonical_json(inputs)))

    @property
    def digest(self) -> str:
        """Return `sha256:…` over the inputs as canonical JSON."""
        return sha256_digest(canonical_json(self.inputs).encode())

    @property
    def untrained(self) -> bool:
        return bool(self.inputs["weights"]["untrained"])

    @property
    def custom_weights(self) -> bool:
        """Return False also for inputs without weights, which an uploaded artifact may have."""
        weights = self.inputs.get("weights")
        return isinstance(weights, Mapping) and weights.get("custom") is True
