"""Starts, shows, pauses, resumes and cancels campaigns, as operators ask for it. Knows no HTTP."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily

from services.registry_api.campaigns.book import CampaignBook
from services.registry_api.campaigns.campaign import Campaign, Progress
from services.registry_api.campaigns.preparation import Preparation
from services.registry_api.campaigns.runner import CampaignRunner
from services.registry_api.campaigns.signals import campaign_signals
from services.registry_api.operations.encoder_promotion import another_encoder, has_worker
from services.shared.registry.parts import RegistryParts
from speaker_registry.errors import CampaignEnded, CampaignOpen, EncoderUnserved
from speaker_registry.schemas import DEFAULT_SAMPLE


@dataclass(frozen=True, slots=True)
class ShownCampaign:
    """A campaign with what it has done so far."""

    campaign: Campaign
    progress: Progress

    @property
    def reason(self) -> str | None:
        """Say why nothing is begun now, or why the encoder was not promoted. None if nothing is wrong."""
        if self.campaign.state == "complete" and self.campaign.promotes:
            return f"{self.progress.failed} voices failed, so the encoder was not promoted by itself"
        return self.progress.waits if self.campaign.state == "running" else None


Operations = Any


class Campaigns:
    """Starts and changes campaigns. Methods raise `Unavailable` and `ProfileUnknown`."""

    def __init__(self, parts: RegistryParts, operations: Operations) -> None:
        self._parts = parts
        self._operations = operations
        self._book = CampaignBook(parts)
        self.runner = CampaignRunner(parts, operations, self._book)

    def start(
        self, profile: str, fingerprint: str, *, sample: int = DEFAULT_SAMPLE, rate: float | None = None
    ) -> ShownCampaign:
        """Start a campaign in which the workers of an encoder extract every voice.

        Raises:
            EncoderUnknown: no worker ever came with this fingerprint for the profile.
            EncoderCurrent: it is the current one already.
            EncoderUnserved: no live worker has it.
            CampaignOpen: another campaign of the profile is not over.
        """
        self._check(profile, fingerprint)
        with self._book.lock(wait=True):
            self._refuse_second(profile)
            return self._shown(self._book.write(self._new(profile, fingerprint, sample=sample, rate=rate)))

    def promote_when_complete(self, profile: str, fingerprint: str, *, force: bool) -> ShownCampaign:
        """Promote an encoder once it has an artifact of every voice. A campaign is started if there is none.

        Raises what `start` raises, the last only if the other campaign is one of another encoder.
        """
        self._check(profile, fingerprint)
        wanted = {"promotes": True, "force": force}
        with self._book.lock(wait=True):
            going = self._open(profile)
            if going is not None and going.fingerprint == fingerprint:
                return self._shown(self._book.write(going.changed(self._parts.clock.now(), **wanted)))
            self._refuse_second(profile)
            new = self._new(profile, fingerprint, sample=DEFAULT_SAMPLE, rate=None)
            return self._shown(self._book.write(new.model_copy(update=wanted)))

    def of_profile(self, profile: str) -> list[ShownCampaign]:
        """Return the campaigns of a profile, the newest first."""
        return self._all_shown(self._book.of_profile(profile))

    def get(self, profile: str, campaign_id: str) -> ShownCampaign:
        """Return a campaign. Raises `CampaignNotFound`."""
        return self._shown(self._book.get(profile, campaign_id))

    def pause(self, profile: str, campaign_id: str) -> ShownCampaign:
        """Begin no further voices. Those that are under way end.

        Raises `CampaignNotFound`, `CampaignEnded`.
        """
        return self._change(profile, campaign_id, lambda _: {"state": "paused"})

    def resume(self, profile: str, campaign_id: str) -> ShownCampaign:
        """Go on with a paused campaign. Raises `CampaignNotFound`, `CampaignEnded`."""
        return self._change(profile, campaign_id, lambda _: {"state": "running"})

    def cancel(self, profile: str, campaign_id: str) -> ShownCampaign:
        """End a campaign. What was extracted stays. Raises `CampaignNotFound`, `CampaignEnded`."""
        return self._change(profile, campaign_id, self._canceled)

    def coverage(self, profile: str) -> dict[str, float]:
        """Return, by fingerprint, the share of voices that the last campaign of each encoder has covered."""
        oldest_first = reversed(self.of_profile(profile))
        return {one.campaign.fingerprint: one.progress.coverage for one in oldest_first}

    def signals(self) -> list[GaugeMetricFamily]:
        """Return the metrics of campaigns. Raises nothing while Redis answers."""
        return campaign_signals(self._book)

    def _check(self, profile: str, fingerprint: str) -> None:
        another_encoder(self._parts, profile, fingerprint)
        if not has_worker(self._parts, profile, fingerprint):
            raise EncoderUnserved(
                f"No live worker has {fingerprint}, so nothing would make artifacts for profile '{profile}'. "
                "Start a worker that has it first.",
                param="fingerprint",
            )

    def _open(self, profile: str) -> Campaign | None:
        current = self._parts.announcements.fingerprint(profile)
        found = (one for one in self._book.of_profile(profile) if one.open)
        return next((one for one in found if one.fingerprint != current), None)

    def _refuse_second(self, profile: str) -> None:
        going = self._open(profile)
        if going is not None:
            raise CampaignOpen(
                f"Campaign '{going.id}' of profile '{profile}' for {going.fingerprint} is {going.state}. "
                "Wait until it is over, or cancel it first.",
                param="fingerprint",
            )

    def _new(self, profile: str, fingerprint: str, *, sample: int, rate: float | None) -> Campaign:
        now = self._parts.clock.now()
        return Campaign(
            id=self._parts.clock.new_id(),
            profile=profile,
            fingerprint=fingerprint,
            sample=sample,
            rate=rate,
            created_at=now,
            changed_at=now,
        )

    def _change(
        self, profile: str, campaign_id: str, change: Callable[[Campaign], dict[str, object]]
    ) -> ShownCampaign:
        """Change a campaign that is not over. A change that was made already changes nothing."""
        with self._book.lock(wait=True):
            campaign = self._book.get(profile, campaign_id)
            changes = change(campaign)
            if campaign.state == changes["state"]:
                return self._shown(campaign)
            if not campaign.open:
                raise CampaignEnded(
                    f"Campaign '{campaign_id}' is {campaign.state}; only one that is running or paused can "
                    "be changed.",
                    param="campaign_id",
                )
            return self._shown(self._book.write(campaign.changed(self._parts.clock.now(), **changes)))

    def _canceled(self, campaign: Campaign) -> dict[str, object]:
        """Take back the jobs of a campaign that is not over, and return the change that ends it."""
        progress = self._shown(campaign).progress
        if campaign.open:
            Preparation(self._parts, self._operations, campaign).withdraw(progress)
        return {"state": "canceled", "result": progress.model_copy(update={"under_way": (), "waits": None})}

    def _shown(self, campaign: Campaign) -> ShownCampaign:
        return self._all_shown([campaign])[0]

    def _all_shown(self, campaigns: Iterable[Campaign]) -> list[ShownCampaign]:
        found = list(campaigns)
        progress = self._book.progress(found)
        return [ShownCampaign(one, progress[one.id]) for one in found]
