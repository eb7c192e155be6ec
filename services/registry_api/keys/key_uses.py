"""Remembers when each API key was last used. Redis gets the times once a minute, and may lose them."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import structlog

from services.shared.model.clock import Clock
from services.shared.telemetry.logs import LogThrottle
from services.shared.view.generation import Generation
from services.shared.view.keys import keys_used_key
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

WRITE_SECONDS = 60.0
"""The times are written to Redis this often."""
_throttle = LogThrottle(60.0)


class KeyUses:
    """The times at which keys were last used. No method raises while Redis is unavailable."""

    def __init__(self, generation: Generation, clock: Clock) -> None:
        self._generation = generation
        self._clock = clock
        self._uses: dict[str, int] = {}
        """The times since the last successful write. Bounded, because only keys that exist are used."""

    def note(self, key_id: str) -> None:
        """Note that a key was used just now."""
        self._uses[key_id] = int(self._clock.now())

    def last(self, key_ids: Sequence[str] | None = None) -> dict[str, int]:
        """Return key id -> Unix seconds of the last use, for these keys or for all. Keys without an entry
        were never used, or Redis has lost their times.
        """
        known: dict[str, int] = {}
        with suppress(Unavailable):
            known = self._written(key_ids)
        wanted = None if key_ids is None else set(key_ids)
        own = {one: at for one, at in dict(self._uses).items() if wanted is None or one in wanted}
        return known | {one: max(at, known.get(one, 0)) for one, at in own.items()}

    def _written(self, key_ids: Sequence[str] | None) -> dict[str, int]:
        """Return the times in Redis. Raises `Unavailable`."""
        if key_ids is None:
            [found] = self._generation.read(
                lambda pipeline, generation: pipeline.hgetall(keys_used_key(generation))
            )
        elif key_ids:
            [times] = self._generation.read(
                lambda pipeline, generation: pipeline.hmget(keys_used_key(generation), key_ids)
            )
            found = dict(zip(key_ids, times, strict=True))
        else:
            found = {}
        return {key_id: int(at) for key_id, at in found.items() if at is not None}

    def run(self, stop: threading.Event) -> None:
        """Write the times once a minute until `stop` is set, and then once more."""
        while not stop.wait(WRITE_SECONDS):
            self.write()
        self.write()

    def write(self) -> None:
        """Write to Redis the times that were noted since the last call. If that fails, the next call writes
        them.
        """
        self._uses, used = {}, self._uses
        if not used:
            return
        try:
            # After a failed write, other processes may have written later times.
            known = self._written(list(used))
            later = {key_id: at for key_id, at in used.items() if at > known.get(key_id, -1)}
            self._set(later)
        except Exception as error:  # the thread that calls this must not end
            for key_id, at in used.items():
                self._uses.setdefault(key_id, at)
            if isinstance(error, Unavailable):
                log.info("keys.uses_not_written", keys=len(used))
            elif _throttle.due("failed"):
                log.exception("keys.uses_failed", keys=len(used))

    def _set(self, uses: Mapping[str, int]) -> None:
        """Write these times to Redis. Raises `Unavailable`."""
        if uses:
            self._generation.read(
                lambda pipeline, generation: [
                    pipeline.hset(keys_used_key(generation), key_id, str(at)) for key_id, at in uses.items()
                ]
            )

    def forget(self, key_ids: Iterable[str]) -> None:
        """Delete the times of keys. If Redis does not answer, the times stay."""
        names = sorted(key_ids)
        if names:
            with suppress(Unavailable):
                self._generation.read(
                    lambda pipeline, generation: pipeline.hdel(keys_used_key(generation), *names)
                )
