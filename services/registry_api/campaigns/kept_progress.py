"""Keeps the progress of campaigns in Redis, and the lock of the process that runs them.

If Redis loses the progress, the walks start over, and nothing is extracted twice. This module knows no rules.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from redis.exceptions import LockError
from redis.lock import Lock

from services.registry_api.campaigns.campaign import Progress
from services.shared.model.profile_document import CampaignRecord
from services.shared.view.generation import Generation
from services.shared.view.keys import campaigns_key
from services.shared.view.redis_access import unavailable_without_redis
from speaker_registry.errors import Unavailable

_LOCK_SECONDS = 15.0
_WAIT_SECONDS = 10.0
"""An operator's change waits at most this long for the runner to end its turn."""


class KeptProgress:
    """The progress of all campaigns. Every method raises `Unavailable` while Redis cannot be used."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def of(self, campaigns: Iterable[CampaignRecord]) -> dict[str, Progress]:
        """Return the progress of campaigns by their ids. Lost progress is returned as that of a new
        campaign.
        """
        progress = {one.id: Progress.at_the_end(one) for one in campaigns}
        ids = [campaign_id for campaign_id, at_the_end in progress.items() if at_the_end is None]
        kept = self._read(ids) if ids else {}
        return {campaign_id: one or kept[campaign_id] for campaign_id, one in progress.items()}

    def ids(self) -> set[str]:
        """Return the ids of the campaigns whose progress is kept."""
        [found] = self._generation.read(
            lambda pipeline, generation: pipeline.hkeys(campaigns_key(generation))
        )
        return set(found)

    def last_of(self, campaign: CampaignRecord) -> Progress:
        """Return the last stored progress, even that of a campaign that is over."""
        return self._read([campaign.id])[campaign.id]

    def write(self, campaign: CampaignRecord, progress: Progress) -> None:
        self._generation.read(
            lambda pipeline, generation: pipeline.hset(
                campaigns_key(generation), campaign.id, progress.model_dump_json()
            )
        )

    def forget(self, campaign: CampaignRecord) -> None:
        """Delete the progress of a campaign that is over, because the profile's document has it now."""
        self._generation.read(
            lambda pipeline, generation: pipeline.hdel(campaigns_key(generation), campaign.id)
        )

    @contextmanager
    def lock(self, *, wait: bool) -> Iterator[Lock]:
        """Hold the lock of the process that runs campaigns. Losing it midway is harmless.

        Raises:
            Unavailable: another process holds it, and `wait` is false or the lock was not released in time.
        """
        lock = self._generation.redis.lock(
            f"{campaigns_key(self._generation.for_reading())}:lock",
            timeout=_LOCK_SECONDS,
            sleep=0.02,
            blocking=wait,
            blocking_timeout=_WAIT_SECONDS if wait else None,
            thread_local=False,
        )
        with unavailable_without_redis():
            if not lock.acquire():
                raise Unavailable("Another process is changing the campaigns.", retry_after_seconds=1)
        try:
            yield lock
        finally:
            with suppress(LockError, Unavailable), unavailable_without_redis():
                lock.release()

    def _read(self, ids: list[str]) -> dict[str, Progress]:
        [texts] = self._generation.read(
            lambda pipeline, generation: pipeline.hmget(campaigns_key(generation), ids)
        )
        return {
            campaign_id: Progress.model_validate_json(text) if text else Progress()
            for campaign_id, text in zip(ids, texts, strict=True)
        }
