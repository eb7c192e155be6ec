"""Makes encoders current without a worker."""

from collections.abc import Mapping
from typing import Any

from services.shared.index.announcements import Announcements
from services.shared.model.encoders import Encoder


def make_current(
    announcements: Announcements,
    profile: str,
    fingerprint: str,
    extractor: Mapping[str, Any],
    *,
    untrained: bool = False,
) -> None:
    """Announce an encoder as its worker does, and promote it unless it is the current one by then."""
    if not announcements.announce(profile, fingerprint, extractor, untrained=untrained):
        announcements.promote(
            Encoder(profile=profile, fingerprint=fingerprint, extractor=dict(extractor), untrained=untrained)
        )
