"""Announces encoders and makes them current without a worker."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from services.shared.model.encoders import Encoder
from services.shared.model.profile_document import promoted
from services.shared.registry.announce import announce
from services.shared.registry.profile_records import ProfileRecords


def come_with(
    profiles: ProfileRecords,
    profile: str,
    fingerprint: str,
    extractor: Mapping[str, Any] | None = None,
    *,
    untrained: bool = False,
) -> bool:
    """Announce an encoder as its worker does. Returns whether it is the current one by then."""
    encoder = Encoder(
        profile=profile, fingerprint=fingerprint, extractor=dict(extractor or {}), untrained=untrained
    )
    return announce(profiles, encoder, worker="test")


def make_current(
    profiles: ProfileRecords,
    profile: str,
    fingerprint: str,
    extractor: Mapping[str, Any] | None = None,
    *,
    untrained: bool = False,
) -> None:
    """Announce an encoder, and promote it unless it is the current one by then. This waits for nobody."""
    if not come_with(profiles, profile, fingerprint, extractor, untrained=untrained):
        profiles.change(profile, partial(promoted, fingerprint=fingerprint), by="test", did="promote")
