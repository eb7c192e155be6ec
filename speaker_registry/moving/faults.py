"""Tells apart errors that concern one voice, errors that end all work, internal errors of the registry, and
requests for a pause.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from speaker_registry.errors import (
    InvalidApiKey,
    PermissionDenied,
    RateLimited,
    SpeakerRegistryError,
    Unavailable,
    VoiceDamaged,
    VoiceUnreadable,
)
from speaker_registry.exchange import OnPause

MAX_PAUSES = 60
"""Maximum number of pauses of one call at the registry's request. Rate limits are per minute."""
MAX_PAUSE_SECONDS = 120.0
"""Longest pause that a command makes at the registry's request. If the registry asks for more, for example
during maintenance, the command ends with the registry's message.
"""
Result = TypeVar("Result")


def asked_pause(error: SpeakerRegistryError) -> float | None:
    """Return the seconds after which the registry asked to come back (429 or 503, with `Retry-After`). Return
    None if it did not ask, or asked for more than `MAX_PAUSE_SECONDS`.
    """
    seconds = error.retry_after_seconds
    return seconds if error.retryable and seconds is not None and seconds <= MAX_PAUSE_SECONDS else None


def concerns_one_voice(error: SpeakerRegistryError) -> bool:
    """Return whether the next voice may succeed. It cannot if the API key is refused or nobody answers."""
    if isinstance(error, VoiceUnreadable | VoiceDamaged):
        return True
    return not isinstance(error, Unavailable | RateLimited | InvalidApiKey | PermissionDenied)


def as_unavailable(error: SpeakerRegistryError) -> Unavailable | None:
    """Return `Unavailable` for an internal error of the registry (500), which says nothing about the voice.
    Return None for any other error.
    """
    if error.code != SpeakerRegistryError.code:
        return None
    missing = Unavailable(error.message)
    missing.request_id = error.request_id
    return missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Repeats calls that the registry asks to repeat later."""

    on_pause: OnPause = lambda *_: None
    sleep: Callable[[float], object] = time.sleep

    def retry(self, call: Callable[[], Result], *, max_unavailable: int = MAX_PAUSES) -> Result:
        """Repeat a call while the registry asks to come back soon, with up to `MAX_PAUSES` pauses.

        Args:
            max_unavailable: Maximum number of pauses after a 503. A call about one voice takes fewer, because
                its store may be unable to read that one.
        """
        unavailable = 0
        for _ in range(MAX_PAUSES):
            try:
                return call()
            except SpeakerRegistryError as error:
                unavailable += isinstance(error, Unavailable)
                seconds = asked_pause(error)
                if seconds is None or unavailable > max_unavailable:
                    raise
                self.on_pause(error, seconds)
                self.sleep(seconds)
        return call()
