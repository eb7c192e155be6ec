"""Makes another encoder the current one of a profile, as an operator asks for it. Knows no HTTP.

Promoting the encoder that was current before is the way back. It costs no extraction, because the artifacts
of both encoders stay.
"""

from contextlib import suppress

from services.shared.bucket.encoder_records import Announcement
from services.shared.model.encoders import Encoder
from services.shared.registry.parts import RegistryParts
from speaker_registry.errors import EncoderCurrent, EncoderUnknown, EncoderUnserved, Unavailable


def promote(parts: RegistryParts, profile: str, fingerprint: str, *, force: bool = False) -> Announcement:
    """Make an encoder the current one of its profile at once.

    Every voice keeps its last artifact until its new one is ready. Returns when no process answers any more
    as it did before.

    Args:
        force: promote the encoder even if no live worker has it.

    Raises:
        ProfileUnknown, Unavailable.
        EncoderUnknown: no worker ever came with this fingerprint for the profile.
        EncoderCurrent: it is the current one already.
        EncoderUnserved: no live worker has it, and `force` is false.
    """
    encoder = another_encoder(parts, profile, fingerprint)
    if not force and not has_worker(parts, profile, fingerprint):
        raise EncoderUnserved(
            f"No live worker has {fingerprint}, so nothing would make artifacts for profile '{profile}'. "
            "Start a worker that has it, or send force=true.",
            param="fingerprint",
        )
    made = parts.announcements.promote(encoder)
    parts.leases.settle()
    return made


def another_encoder(parts: RegistryParts, profile: str, fingerprint: str) -> Encoder:
    """Return an encoder of a profile that is not its current one.

    Raises:
        ProfileUnknown, EncoderUnknown, EncoderCurrent, Unavailable.
    """
    parts.catalogue.get(profile)
    parts.announcements.look_anew()
    if parts.announcements.fingerprint(profile) == fingerprint:
        raise EncoderCurrent(
            f"{fingerprint} is already the current fingerprint of profile '{profile}'.", param="fingerprint"
        )
    encoder = parts.announcements.encoder(profile, fingerprint)
    if encoder is None:
        raise _unknown(parts, profile, fingerprint)
    return encoder


def has_worker(parts: RegistryParts, profile: str, fingerprint: str) -> bool:
    """Return whether a live worker has this encoder of a profile."""
    return parts.announcements.workers_of([profile])[profile][fingerprint] > 0


def _unknown(parts: RegistryParts, profile: str, fingerprint: str) -> EncoderUnknown:
    """Return the error for a fingerprint that is not one of the profile's. It says whose it is, if known."""
    owner: Encoder | None = None
    with suppress(Unavailable):  # a record of another profile cannot be read
        found = (parts.announcements.encoder(one, fingerprint) for one in parts.catalogue.names - {profile})
        owner = next((one for one in found if one is not None), None)
    whose = f"; it is a fingerprint of profile '{owner.profile}'" if owner else ""
    return EncoderUnknown(
        f"No worker ever came with {fingerprint} for profile '{profile}'{whose}. GET /v1/profiles lists the "
        "candidates and the former fingerprints of each profile.",
        param="fingerprint",
    )
