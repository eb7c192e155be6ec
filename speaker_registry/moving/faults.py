"""Tells apart errors that concern one voice, errors that end all work, internal errors of the registry, and
requests for a pause.
"""

import time
from collections.abc import Callable
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

MAX_PAUSES = 60
"""Maximum number of pauses of one call at the registry's request. Rate limits are per minute."""
Result = TypeVar("Result")


def asks_to_wait(error: SpeakerRegistryError) -> bool:
    """Return whether the registry asked to come back later (429, or 503 with `Retry-After`)."""
    return error.retryable and error.retry_after_seconds is not None


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


def retry_when_asked(
    call: Callable[[], Result],
    sleep: Callable[[float], object] = time.sleep,
    *,
    max_unavailable: int = MAX_PAUSES,
) -> Result:
    """Repeat a call while the registry asks to come back later, with up to `MAX_PAUSES` pauses.

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
            if not asks_to_wait(error) or unavailable > max_unavailable:
                raise
            sleep(error.retry_after_seconds or 0.0)
    return call()
