"""Checks whether a live worker has the current encoder of a profile. The answer is at most a second old."""

from dataclasses import dataclass

from services.shared.model.clock import Clock
from services.shared.view.workers import Workers
from speaker_registry.errors import Unavailable

_REMEMBERED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Known:
    served: bool
    until: float


class ServedEncoders:
    """Remembers for a moment which encoders live workers have. Safe to use from several threads."""

    def __init__(self, workers: Workers, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}  # bounded by the number of encoders

    def holds(self, profile: str, fingerprint: str) -> bool:
        """Return whether a live worker has this encoder, or True if that is unknown."""
        known = self._known.get((profile, fingerprint))
        if known is None or known.until < self._clock.monotonic():
            known = _Known(self._look(profile, fingerprint), self._clock.monotonic() + _REMEMBERED_SECONDS)
            self._known[profile, fingerprint] = known
        return known.served

    def _look(self, profile: str, fingerprint: str) -> bool:
        try:
            return self._workers.have(profile, fingerprint)
        except Unavailable:
            return True
