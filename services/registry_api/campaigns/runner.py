"""Goes on with all campaigns in the background. Any number of processes may run this at once: a lock lets one
of them work, and each goes on where the last one ended.
"""

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

import structlog
from redis.exceptions import LockError

from services.registry_api.campaigns.campaign import Progress
from services.registry_api.campaigns.kept_progress import KeptProgress
from services.registry_api.campaigns.preparation import NO_WORKER, Preparation
from services.registry_api.operations.promote import commit_promotion
from services.shared.model.profile_document import (
    CampaignRecord,
    ProfileDocument,
    promoted_by_campaign,
    with_campaign_state,
)
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.profile_records import ProfileRecords
from services.shared.telemetry.logs import LogThrottle
from services.shared.view.redis_access import unavailable_without_redis
from services.shared.view.workers import Workers
from speaker_registry.errors import CampaignEnded, EncoderCurrent, Unavailable
from speaker_registry.schemas import CampaignState

log = structlog.get_logger()

_throttle = LogThrottle(60.0)
_BUSY_SECONDS, _IDLE_SECONDS = 0.1, 1.0
"""The pause between two turns while something is under way, and otherwise."""
_BY = "campaign"
"""Documents name this as the one that ended a campaign which came to its end."""


Prepare = Callable[[CampaignRecord, Callable[[], object]], Preparation]
"""Builds the preparation of a campaign, with the function that keeps the lock."""


class CampaignRunner:
    """Goes on with campaigns. Call `turn` about once a second, or let `run` do so in its own thread."""

    def __init__(
        self,
        profiles: ProfileRecords,
        workers: Workers,
        catalogue: ProfileCatalogue,
        kept: KeptProgress,
        prepare: Prepare,
    ) -> None:
        self._profiles = profiles
        self._workers = workers
        self._catalogue = catalogue
        self._kept = kept
        self._prepare = prepare

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
        """Go on with every campaign that is not over. Returns whether anything is under way.

        The jobs of canceled campaigns are taken back first, if the process ended that was to do so.
        """
        documents = {name: self._profiles.read(name) for name in sorted(self._catalogue.names)}
        # A rival may forget some of these meanwhile. Taking back what it took back already does nothing.
        kept = self._kept.ids() if any(map(_over, documents.values())) else set()
        names = [name for name, one in documents.items() if _open(one) or _left_over(one, kept)]
        if not names:
            return False
        with self._kept.lock(wait=False) as lock:

            def renew() -> None:
                with suppress(LockError), unavailable_without_redis():
                    lock.reacquire()

            newest = [self._profiles.read_anew(name) for name in names]
            for one in newest:
                for campaign in _left_over(one, kept):
                    self._take_back(campaign, renew)
            found = [campaign for one in newest for campaign in _open(one)]
            progress = self._kept.of(found)
            busy = [self._go_on_unless_broken(one, progress[one.id], renew) for one in found]
        return any(busy)

    def _take_back(self, campaign: CampaignRecord, renew: Callable[[], None]) -> None:
        """Do what has to follow the end of a campaign. Jobs of an encoder that is current now are wanted."""
        current = self._profiles.fingerprint(campaign.profile)
        if campaign.state == "canceled" and campaign.fingerprint != current:
            self._prepare(campaign, renew).withdraw(self._kept.last_of(campaign))
            log.info("campaign.taken_back", campaign=campaign.id, profile=campaign.profile)
        self._kept.forget(campaign)

    def _go_on_unless_broken(
        self, campaign: CampaignRecord, before: Progress, renew: Callable[[], None]
    ) -> bool:
        """Go on with a campaign. One that cannot must not keep those of other profiles from going on."""
        try:
            return self._go_on(campaign, before, renew)
        except Unavailable:
            raise  # bucket or Redis is away, which concerns all campaigns
        except Exception:
            log.exception("campaign.failed", campaign=campaign.id, profile=campaign.profile)
            return False

    def _go_on(self, campaign: CampaignRecord, before: Progress, renew: Callable[[], None]) -> bool:
        if self._profiles.fingerprint(campaign.profile) == campaign.fingerprint:
            self._end(campaign, "promoted", before.stopped())
            return False
        progress = self._prepare(campaign, renew).turn(before)
        if progress.finished and campaign.state == "running":
            if not (campaign.promotes and (progress.complete or campaign.force)):
                self._end(campaign, "complete", progress)
                return True
            if self._promote(campaign, progress):
                return True
            progress = progress.model_copy(update={"waits": NO_WORKER})
        if progress != before:
            self._kept.write(campaign, progress)
        return bool(progress.under_way) or progress != before

    def _promote(self, campaign: CampaignRecord, progress: Progress) -> bool:
        """Promote the encoder of a campaign that has reached every voice. None of them failed, or an operator
        has said that it does not matter.

        Returns False if a live worker has to have the encoder, and none has.
        """
        profile = campaign.profile
        if not campaign.force and not self._workers.have(profile, campaign.fingerprint):
            return False
        decide = partial(
            promoted_by_campaign,
            campaign_id=campaign.id,
            now=self._profiles.now(),
            result=progress.model_dump(mode="json"),
        )
        with suppress(EncoderCurrent):  # an operator was first, and the next turn ends the campaign
            commit_promotion(self._profiles, profile, decide, by=_BY)
            self._kept.forget(campaign)
        return True

    def _end(self, campaign: CampaignRecord, state: CampaignState, progress: Progress) -> None:
        decide = partial(
            with_campaign_state,
            campaign_id=campaign.id,
            state=state,
            now=self._profiles.now(),
            result=progress.model_dump(mode="json"),
        )
        with suppress(CampaignEnded):  # an operator canceled it meanwhile
            self._profiles.change(campaign.profile, decide, by=_BY, did=f"campaign {state}")
            log.info("campaign.changed", campaign=campaign.id, profile=campaign.profile, state=state)
        self._kept.forget(campaign)


def _open(document: ProfileDocument) -> list[CampaignRecord]:
    """Return the campaigns that are not over, the one whose encoder is current by now among them."""
    return [one for one in document.campaigns if one.open]


def _over(document: ProfileDocument) -> list[CampaignRecord]:
    return [one for one in document.campaigns if not one.open]


def _left_over(document: ProfileDocument, kept: Collection[str]) -> list[CampaignRecord]:
    """Return the campaigns that are over and whose progress is still kept.

    Args:
        kept: the ids of the campaigns whose progress is kept.
    """
    return [one for one in _over(document) if one.id in kept]
