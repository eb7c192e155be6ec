"""Keeps the progress of campaigns in Redis, and the lock of the process that runs them.

If Redis loses the progress, the walks start over, and nothing is extracted twice. This module knows no rules.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager

from services.registry_api.campaigns.campaign import Progress
from services.registry_api.maintenance.locks import RenewLock, only_one
from services.shared.model.clock import Clock
from services.shared.model.profile_document import CampaignRecord
from services.shared.view.generation import Generation
from services.shared.view.keys import campaigns_key

_WAIT_SECONDS = 10.0
"""An operator's change waits at most this long for the runner to end its turn."""


class KeptProgress:
    """The progress of all campaigns. Every method raises `Unavailable` while Redis cannot be used."""

    def __init__(self, generation: Generation, clock: Clock) -> None:
        self._generation = generation
        self._clock = clock

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

    def lock(self, *, wait: bool) -> AbstractContextManager[RenewLock]:
        """Hold the lock of the process that runs campaigns. Losing it midway is harmless.

        Raises:
            Unavailable: another process holds it, and `wait` is false or the lock was not released in time.
        """
        wait_seconds = _WAIT_SECONDS if wait else 0.0
        return only_one(self._generation, self._clock, "campaigns", wait_seconds=wait_seconds)

    def _read(self, ids: list[str]) -> dict[str, Progress]:
        [texts] = self._generation.read(
            lambda pipeline, generation: pipeline.hmget(campaigns_key(generation), ids)
        )
        return {
            campaign_id: Progress.model_validate_json(text) if text else Progress()
            for campaign_id, text in zip(ids, texts, strict=True)
        }
