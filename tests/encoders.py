"""Makes encoders current without a worker."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from services.shared.model import profile_document
from services.shared.model.encoders import Encoder
from services.shared.registry.announce import announce
from services.shared.registry.profile_records import ProfileRecords


def make_current(
    records: ProfileRecords,
    profile: str,
    fingerprint: str,
    extractor: Mapping[str, Any],
    *,
    untrained: bool = False,
) -> None:
    """Announce an encoder as its worker does, and promote it unless it is the current one by then."""
    encoder = Encoder(
        profile=profile, fingerprint=fingerprint, extractor=dict(extractor), untrained=untrained
    )
    if not announce(records, encoder, worker="stand-in"):
        decide = partial(profile_document.promoted, fingerprint=fingerprint)
        records.change(profile, decide, by="test", did="promote")
