"""Announces the encoder of a worker that starts."""

from functools import partial

import structlog

from services.shared.model.encoders import Encoder
from services.shared.model.profile_document import announced
from services.shared.registry.profile_records import ProfileRecords

log = structlog.get_logger(__name__)


def announce(profiles: ProfileRecords, encoder: Encoder, *, worker: str) -> bool:
    """Record that a worker has an encoder. Returns whether it is the current encoder of its profile.

    It becomes the current one if `takes_over` says so, and is a candidate otherwise. Raises `Unavailable`.
    """
    document = profiles.change(
        encoder.profile, partial(announced, encoder=encoder), by=worker, did="announce"
    )
    is_current = document.fingerprint == encoder.fingerprint
    log.info(
        "profile.announced", profile=encoder.profile, fingerprint=encoder.fingerprint, current=is_current
    )
    return is_current
