"""Remembers when each API key was last used. Redis gets the times once a minute, and may lose them."""

from collections.abc import Iterable
from contextlib import suppress

import structlog

from services.shared.model.clock import Clock
from services.shared.view.generation import Generation
from services.shared.view.keys import keys_used_key
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

WRITE_SECONDS = 60.0
"""The times are written to Redis this often."""


class KeyUses:
    """The times at which keys were last used. No method raises while Redis is unavailable."""

    def __init__(self, generation: Generation, clock: Clock) -> None:
        self._generation = generation
        self._clock = clock
        self._uses: dict[str, int] = {}  # bounded: only keys that exist, since the last write
        self._written_at = clock.since_boot()

    def note(self, key_id: str) -> None:
        """Note that a key was used just now."""
        self._uses[key_id] = int(self._clock.now())

    def last(self) -> dict[str, int]:
        """Return key id -> Unix seconds of the last use. Keys without an entry were never used, or Redis has
        lost their times.
        """
        written: dict[str, str] = {}
        with suppress(Unavailable):
            [written] = self._generation.read(
                lambda pipeline, generation: pipeline.hgetall(keys_used_key(generation))
            )
        known = {key_id: int(at) for key_id, at in written.items()}
        return known | {key_id: max(at, known.get(key_id, 0)) for key_id, at in dict(self._uses).items()}

    def write_if_due(self) -> None:
        """Write the times to Redis if the last write was more than `WRITE_SECONDS` ago. Call this often."""
        if self._clock.since_boot() - self._written_at < WRITE_SECONDS or not self._uses:
            return
        self._written_at = self._clock.since_boot()
        self._uses, used = {}, self._uses
        try:
            self._generation.read(
                lambda pipeline, generation: [
                    pipeline.hset(keys_used_key(generation), key_id, str(at)) for key_id, at in used.items()
                ]
            )
        except Unavailable:
            log.info("keys.uses_not_written", keys=len(used))

    def forget(self, key_ids: Iterable[str]) -> None:
        """Delete the times of keys. If Redis does not answer, the times stay."""
        names = sorted(key_ids)
        if names:
            with suppress(Unavailable):
                self._generation.read(
                    lambda pipeline, generation: pipeline.hdel(keys_used_key(generation), *names)
                )
