"""The errors that the index's scripts answer with, and what they mean to callers."""

import redis

from services.shared.bucket.keys import SpeakerId
from services.shared.index.gate import GateClosed
from speaker_registry.errors import (
    Conflict,
    IdempotencyKeyReused,
    QuotaExceeded,
    RegistrationInProgress,
    Unavailable,
    VoiceDamaged,
    VoiceExists,
    VoiceNotFound,
    VoiceUnreadable,
)


class NotAdmitted(Exception):
    """The current index does not know the speaker yet."""


class EpochOver(Unavailable):
    """The index was lost while facts were being read for it."""

    def __init__(self) -> None:
        super().__init__("The index was lost meanwhile; try again.", retry_after_seconds=1)


class CensusDue(Exception):
    """A census has to say which older versions of this speaker count before a new one is reserved."""


class FactsDue(Exception):
    """The index has to read this speaker's facts again before a new version is reserved.

    A fact for an earlier place may have landed although the process that stored it died before it told the
    index; or a delete was begun that can no longer land.
    """


class AlreadyMade(Exception):
    """A version of this speaker has been registered with this Idempotency-Key since the caller looked."""


class Undecided(Unavailable):
    """The index was lost a moment ago, and what was published for this speaker just before may still land."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The index was lost a moment ago, and the new one does not know yet what was published of voice "
            f"'{name}' just before. Send the request again in a few seconds.",
            retry_after_seconds=3,
        )


class Rivals(Exception):
    """Another publish of the same artifact was admitted. Wait until its bytes can no longer come first."""


class AliasMoved(Conflict):
    """The alias was moved since it was read."""

    code = "alias_moved"


class TooManyVersions(QuotaExceeded):
    """The speaker has as many versions as one may have."""


class NamespaceFull(QuotaExceeded):
    """An upload would take more than what is left of the namespace's bytes."""


class TextsFull(QuotaExceeded):
    """An upload's texts would take more than what is left for the texts of the namespace."""


def key_reused() -> IdempotencyKeyReused:
    """Return the error for a reused key. Its message does not show the key, which may be a secret."""
    return IdempotencyKeyReused(
        "This Idempotency-Key was used for another request. Accepted: that same request again, or a new key."
    )


def voice_damaged(name: str) -> VoiceDamaged:
    """The log names the object."""
    return VoiceDamaged(
        f"A record of voice '{name}' is damaged in the bucket, so what the name stands for is unknown. "
        "Restore the object that the log names from a backup, or delete the voice."
    )


def voice_exhausted(name: str) -> VoiceDamaged:
    return VoiceDamaged(
        f"A record of voice '{name}' in the bucket has the last place, number or date that there is, so none "
        "can come after it. Delete the voice, and take another name."
    )


def voice_unreadable(name: str) -> VoiceUnreadable:
    """The log names the object."""
    return VoiceUnreadable(
        f"A record of voice '{name}' cannot be read from the bucket now, so what the name stands "
        "for is unknown. The registry tries again; the log names the object.",
        retry_after_seconds=60,
    )


def error_of(error: redis.ResponseError, speaker_id: SpeakerId) -> Exception:
    """Return the error that a script's error reply stands for, or the reply itself if it is not ours."""
    ours: dict[str, Exception] = {
        "GATE": GateClosed(),
        "ABSENT": NotAdmitted(),
        "EPOCH": EpochOver(),
        "CENSUS": CensusDue(),
        "MADE": AlreadyMade(),
        "UNTOLD": FactsDue(),
        "RIVALS": Rivals(),
        "QUOTA": QuotaExceeded("Uploaded voice limit reached."),
        "VERSIONS": TooManyVersions("The voice has as many versions as it may have."),
        "FULL": NamespaceFull("The uploads of this namespace take as much as they may."),
        "TEXTS": TextsFull("The texts of this namespace take as much as they may."),
        "EXISTS": VoiceExists(f"Voice '{speaker_id.slug}' already exists."),
        "RESERVED": RegistrationInProgress(
            f"Voice '{speaker_id.slug}' is being registered by another request, which may be the only one "
            "to do so. Try again: it may have failed.",
            retry_after_seconds=10,
        ),
        "NOTFOUND": VoiceNotFound(f"Voice '{speaker_id.slug}' not found"),
        "REUSED": key_reused(),
        "UNREADABLE": voice_unreadable(speaker_id.slug),
        "DAMAGED": voice_damaged(speaker_id.slug),
        "EXHAUSTED": voice_exhausted(speaker_id.slug),
        "LANDING": Unavailable(
            "An earlier attempt of this request may still be stored: try again later.", retry_after_seconds=60
        ),
        "MOVED": AliasMoved("The alias was moved meanwhile."),
        "UNDECIDED": Undecided(speaker_id.slug),
    }
    return ours.get(str(error).partition(" ")[0], error)
