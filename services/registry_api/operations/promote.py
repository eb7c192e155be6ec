"""Makes another encoder the current one of a profile, on the request of an operator. This module knows no
HTTP.

To undo a promotion, promote the former encoder. That needs no extraction, because the artifacts of both
encoders are kept.
"""

from collections.abc import Callable
from functools import partial

import structlog

from services.shared.model import profile_document
from services.shared.model.encoders import Encoder
from services.shared.model.profile_document import ProfileDocument
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.profile_records import ProfileRecords
from services.shared.view.workers import Workers
from speaker_registry.errors import EncoderCurrent, EncoderUnknown, EncoderUnserved, Unavailable

log = structlog.get_logger(__name__)

Decide = Callable[[ProfileDocument], ProfileDocument]
"""A pure change of a profile's document, which refuses by raising."""


def promote(
    profiles: ProfileRecords,
    workers: Workers,
    catalogue: ProfileCatalogue,
    profile: str,
    fingerprint: str,
    *,
    by: str,
    force: bool = False,
) -> ProfileDocument:
    """Make an encoder the current one of its profile at once.

    Every voice keeps its last artifact until its new one is ready. When this returns, all processes use the
    new encoder.

    Args:
        force: promote the encoder even if no live worker has it.

    Raises:
        ProfileUnknown, Unavailable.
        EncoderUnknown: no worker has announced this fingerprint for the profile.
        EncoderCurrent: it is already the current one.
        EncoderUnserved: no live worker has it, and `force` is false.
    """
    another_encoder(profiles, catalogue, profile, fingerprint)
    if not force:
        expect_worker(workers, profile, fingerprint, ", or send force=true")
    return commit_promotion(
        profiles, profile, partial(profile_document.promoted, fingerprint=fingerprint), by=by
    )


def commit_promotion(profiles: ProfileRecords, profile: str, decide: Decide, *, by: str) -> ProfileDocument:
    """Commit a change that promotes an encoder. When this returns, all processes use the new encoder.

    Raises `Unavailable`, and any error of `decide`.
    """
    document = profiles.change(profile, decide, by=by, did="promote")
    profiles.settle()
    former = document.former_fingerprints
    log.info("profile.updated", profile=profile, fingerprint=document.fingerprint, former=former, by=by)
    return document


def another_encoder(
    profiles: ProfileRecords, catalogue: ProfileCatalogue, profile: str, fingerprint: str
) -> Encoder:
    """Return an encoder of a profile that is not its current one.

    Raises:
        ProfileUnknown, EncoderUnknown, EncoderCurrent, Unavailable.
    """
    catalogue.get(profile)
    try:
        return profile_document.another_encoder(profiles.read_uncached(profile), fingerprint)
    except EncoderCurrent:
        raise EncoderCurrent(
            f"{fingerprint} is already the current fingerprint of profile '{profile}'.", param="fingerprint"
        ) from None
    except EncoderUnknown:
        if (problem := profiles.problem(profile)) is not None:
            raise Unavailable(problem) from None  # what it has announced is not known
        raise _unknown(profiles, catalogue, profile, fingerprint) from None


def expect_worker(workers: Workers, profile: str, fingerprint: str, otherwise: str) -> None:
    """Raise `EncoderUnserved` if no live worker has an encoder. The message ends with `otherwise`."""
    if not workers.have(profile, fingerprint):
        raise EncoderUnserved(
            f"No live worker has {fingerprint}, so nothing would make artifacts for profile '{profile}'. "
            f"Start a worker that has it{otherwise}.",
            param="fingerprint",
        )


def _unknown(
    profiles: ProfileRecords, catalogue: ProfileCatalogue, profile: str, fingerprint: str
) -> EncoderUnknown:
    """Return the error for a fingerprint that the profile does not have. The message names the profile that
    has it, if any.
    """
    others = sorted(catalogue.names - {profile})
    owner = next((name for name in others if profiles.read(name).encoder(fingerprint)), None)
    whose = f"; it is a fingerprint of profile '{owner}'" if owner else ""
    return EncoderUnknown(
        f"No worker has ever announced {fingerprint} for profile '{profile}'{whose}. GET /v1/profiles lists "
        "the candidates and the former fingerprints of each profile.",
        param="fingerprint",
    )
