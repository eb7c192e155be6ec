"""Reads `weights.yaml`, which lists the weights of each profile and their licenses. It does not read the
weights.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files as resources

import yaml
from pydantic import TypeAdapter

from speaker_registry.engine import PublishedWeights


@cache
def published_weights() -> Mapping[str, PublishedWeights]:
    """Return the published weights of each profile, by the profile's name."""
    text = (resources("services.shared.model") / "weights.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, PublishedWeights]).validate_python(yaml.safe_load(text))
