"""Runs all campaigns in the background. Any number of processes may do so at once: a lock lets one of them
work, and each continues where the last one stopped.
"""

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

import structlog

from services.registry_api.campaigns.campaign import NO_WORKER, Progress
from services.registry_api.campaigns.kept_progress import KeptProgress
from services.registry_api.campaigns.preparation import Preparation
from services.registry_api.maintenance.locks import RenewLock
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
from services.shared.view.workers import Workers
from speaker_registry.errors import CampaignEnded, EncoderCurrent, Unavailable
from speaker_registry.schemas import CampaignState

log = structlog.get_logger()

_throttle = LogThrottle(60.0)
_BUSY_SECONDS, _IDLE_SECONDS = 0.1, 1.0
"""The pauses between two turns: while extractions are under way, and otherwise."""
_BY = "campaign"
"""The author that documents record for changes that the runner makes."""


Prepare = Callable[[CampaignRecord, RenewLock], Preparation]
"""A function that builds the preparation of a campaign from the campaign and a function that renews the
lock.
"""


class CampaignRunner:
    """Runs campaigns. Call `turn` about once a second, or let `run` do so in its own thread."""

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
        """Call `turn` until `stop` is set. Errors are logged, and the work is retried."""
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
        """Continue every campaign that is not over. Returns whether any extractions are under way.

        First, the jobs of canceled campaigns are withdrawn, in case the process that canceled them has died.
        """
        documents = {name: self._profiles.read(name) for name in sorted(self._catalogue.names)}
        # Another runner may process some of these meanwhile. Withdrawing jobs a second time does nothing.
        kept = self._kept.ids() if any(map(_over, documents.values())) else set()
        names = [name for name, one in documents.items() if _open(one) or _left_over(one, kept)]
        if not names:
            return False
        with self._kept.lock(wait=False) as renew:
            newest = [self._profiles.read_uncached(name) for name in names]
            for one in newest:
                for campaign in _left_over(one, kept):
                    self._withdraw_jobs(campaign, renew)
            found = [campaign for one in newest for campaign in _open(one)]
            progress = self._kept.of(found)
            busy = [self._continue_logging_errors(one, progress[one.id], renew) for one in found]
        return any(busy)

    def _withdraw_jobs(self, campaign: CampaignRecord, renew: RenewLock) -> None:
        """Withdraw the jobs of a campaign that is over. If its encoder is now the current one, the jobs are
        still needed and stay.
        """
        current = self._profiles.fingerprint(campaign.profile)
        if campaign.state == "canceled" and campaign.fingerprint != current:
            self._prepare(campaign, renew).withdraw(self._kept.last_of(campaign))
            log.info("campaign.jobs_withdrawn", campaign=campaign.id, profile=campaign.profile)
        self._kept.forget(campaign)

    def _continue_logging_errors(self, campaign: CampaignRecord, before: Progress, renew: RenewLock) -> bool:
        """Continue a campaign. An error is logged, so that it does not stop the campaigns of other
        profiles.
        """
        try:
            return self._continue(campaign, before, renew)
        except Unavailable:
            raise  # bucket or Redis is unavailable, which concerns all campaigns
        except Exception:
            log.exception("campaign.failed", campaign=campaign.id, profile=campaign.profile)
            return False

    def _continue(self, campaign: CampaignRecord, before: Progress, renew: RenewLock) -> bool:
        if self._profiles.fingerprint(campaign.profile) == campaign.fingerprint:
            self._end(campaign, "promoted", before)
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
        """Promote the encoder of a campaign that has reached every voice, if no voice failed or the operator
        has set `force`.

        Returns False if `force` is not set and no live worker has the encoder.
        """
        profile = campaign.profile
        if not campaign.force and not self._workers.have(profile, campaign.fingerprint):
            return False
        decide = partial(
            promoted_by_campaign,
            campaign_id=campaign.id,
            now=self._profiles.now(),
            result=progress.at_its_end(),
        )
        with suppress(EncoderCurrent):  # an operator promoted it first; the next turn ends the campaign
            commit_promotion(self._profiles, profile, decide, by=_BY)
            self._kept.forget(campaign)
        return True

    def _end(self, campaign: CampaignRecord, state: CampaignState, progress: Progress) -> None:
        decide = partial(
            with_campaign_state,
            campaign_id=campaign.id,
            state=state,
            now=self._profiles.now(),
            result=progress.at_its_end(),
        )
        with suppress(CampaignEnded):  # an operator canceled it meanwhile
            self._profiles.change(campaign.profile, decide, by=_BY, did=f"campaign {state}")
            log.info("campaign.changed", campaign=campaign.id, profile=campaign.profile, state=state)
        self._kept.forget(campaign)


def _open(document: ProfileDocument) -> list[CampaignRecord]:
    """Return the campaigns that are not over, including any whose encoder has become current."""
    return [one for one in document.campaigns if one.open]


def _over(document: ProfileDocument) -> list[CampaignRecord]:
    return [one for one in document.campaigns if not one.open]


def _left_over(document: ProfileDocument, kept: Collection[str]) -> list[CampaignRecord]:
    """Return the campaigns that are over and whose progress is still kept.

    Args:
        kept: the ids of the campaigns whose progress is kept.
    """
    return [one for one in _over(document) if one.id in kept]
