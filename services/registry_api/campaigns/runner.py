"""Goes on with all campaigns in the background. Any number of processes may run this at once: a lock lets one
of them work, and each goes on where the last one ended.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from redis.exceptions import LockError

from services.registry_api.campaigns.book import CampaignBook
from services.registry_api.campaigns.campaign import Campaign, Progress
from services.registry_api.campaigns.preparation import NO_WORKER, Preparation
from services.registry_api.operations.encoder_promotion import promote
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.registry.parts import RegistryParts
from services.shared.telemetry.logs import LogThrottle
from speaker_registry.errors import EncoderUnserved, Unavailable

Operations = Any
log = structlog.get_logger()

_throttle = LogThrottle(60.0)
_BUSY_SECONDS, _IDLE_SECONDS = 0.1, 1.0
"""The pause between two turns while something is under way, and otherwise."""


class CampaignRunner:
    """Goes on with campaigns. Call `turn` about once a second, or let `run` do so in its own thread."""

    def __init__(self, parts: RegistryParts, operations: Operations, book: CampaignBook) -> None:
        self._parts = parts
        self._operations = operations
        self._book = book

    def run(self, stop: threading.Event) -> None:
        """Call `turn` until `stop` is set. Errors are logged, and the work is tried again."""
        while not stop.is_set():
            busy = False
            try:
                busy = self.turn()
            except Unavailable as error:
                if _throttle.due(str(error)):
                    log.warning("campaigns.put_off", error=str(error))
            except Exception:
                log.exception("campaigns.failed")
            stop.wait(_BUSY_SECONDS if busy else _IDLE_SECONDS)

    def turn(self) -> bool:
        """Go on with every campaign that is not over. Returns whether anything is under way."""
        if not any(one.open for one in self._book.all()):
            return False
        with self._book.lock(wait=False) as lock:

            def renew() -> None:
                with suppress(LockError), unavailable_without_redis():
                    lock.reacquire()

            found = [one for one in self._book.all() if one.open]
            progress = self._book.progress(found)
            busy = [self._go_on(one, progress[one.id], renew) for one in found]
        return any(busy)

    def _go_on(self, campaign: Campaign, before: Progress, renew: Callable[[], None]) -> bool:
        now = self._parts.clock.now()
        if self._parts.announcements.fingerprint(campaign.profile) == campaign.fingerprint:
            result = before.model_copy(update={"under_way": (), "waits": None})
            self._book.write(campaign.changed(now, state="promoted", result=result))
            return False
        progress = Preparation(self._parts, self._operations, campaign, renew).turn(before)
        if progress.finished and campaign.state == "running":
            progress = self._end(campaign, progress)
        if progress != before:
            self._book.write_progress(campaign, progress)
        return bool(progress.under_way) or progress != before

    def _end(self, campaign: Campaign, progress: Progress) -> Progress:
        """End a campaign that has reached every voice, and promote its encoder if that is wanted.

        It is not promoted if voices failed: an operator decides about them.
        """
        state = "complete"
        if campaign.promotes and progress.complete:
            try:
                promote(self._parts, campaign.profile, campaign.fingerprint, force=campaign.force)
            except EncoderUnserved:
                return progress.model_copy(update={"waits": NO_WORKER})
            state = "promoted"
        now = self._parts.clock.now()
        self._book.write(campaign.changed(now, state=state, result=progress))
        return progress
