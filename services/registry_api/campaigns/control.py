"""Starts, shows, pauses, resumes and cancels campaigns for operators. This module knows no HTTP.

Each change is decided on the newest document of the profile: if two operators start a campaign at once, the
second is refused. A change of a running campaign also waits for the lock of the runner, which could otherwise
start further voices after the answer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import structlog
from prometheus_client.metrics_core import GaugeMetricFamily

from services.registry_api.campaigns.campaign import Progress
from services.registry_api.campaigns.erased_voices import forget_voice
from services.registry_api.campaigns.kept_progress import KeptProgress
from services.registry_api.campaigns.preparation import Preparation
from services.registry_api.campaigns.runner import CampaignRunner
from services.registry_api.campaigns.signals import campaign_signals
from services.registry_api.operations.promote import another_encoder, expect_worker
from services.shared.bucket.store import ObjectStore
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.profile_document import (
    CampaignRecord,
    ProfileDocument,
    known_campaign,
    with_campaign,
    with_campaign_state,
    with_promotion_at_the_end,
)
from services.shared.model.profiles import ProfileCatalogue
from services.shared.model.speaker import SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import Speakers
from services.shared.view.workers import Workers
from speaker_registry.errors import CampaignNotFound
from speaker_registry.schemas import DEFAULT_SAMPLE, CampaignState

log = structlog.get_logger()

_IN_A_REASON = 5
"""Largest number of failed voices that a reason lists."""


@dataclass(frozen=True, slots=True)
class ShownCampaign:
    """A campaign with its progress."""

    campaign: CampaignRecord
    progress: Progress

    @property
    def reason(self) -> str | None:
        """The reason why the campaign starts no extractions now, or why the encoder was not promoted. None if
        nothing is wrong.
        """
        if self.campaign.state == "complete" and self.campaign.promotes:
            return _not_promoted(self.progress)
        return self.progress.waits if self.campaign.state == "running" else None


class Campaigns:
    """Starts and changes campaigns. Methods raise `Unavailable` and `ProfileUnknown`.

    In all methods, `by` is the id of the caller that makes the change. It is recorded in the document and the
    log.
    """

    def __init__(
        self,
        *,
        store: ObjectStore,
        speakers: Speakers,
        blobs: StoredBytes,
        jobs: Jobs,
        profiles: Profiles,
        profile_records: ProfileRecords,
        workers: Workers,
        catalogue: ProfileCatalogue,
    ) -> None:
        self._clock = speakers.clock
        self._profiles = profile_records
        self._workers = workers
        self._catalogue = catalogue
        self._kept = KeptProgress(speakers.generation, speakers.clock)
        self._prepare = partial(
            Preparation,
            store=store,
            speakers=speakers,
            blobs=blobs,
            jobs=jobs,
            profiles=profiles,
            workers=workers,
        )
        self.runner = CampaignRunner(profile_records, workers, catalogue, self._kept, self._prepare)

    def start(
        self,
        profile: str,
        fingerprint: str,
        *,
        by: str,
        sample: int = DEFAULT_SAMPLE,
        rate: float | None = None,
    ) -> ShownCampaign:
        """Start a campaign in which the workers of an encoder extract every voice.

        Raises:
            EncoderUnknown: no worker has announced this fingerprint for the profile.
            EncoderCurrent: it is already the current one.
            EncoderUnserved: no live worker has it.
            CampaignOpen: another campaign of the profile is not over.
        """
        self._check(profile, fingerprint)
        new = self._new(profile, fingerprint, sample=sample, rate=rate)
        document = self._commit(profile, partial(with_campaign, campaign=new), by=by, did="start campaign")
        return self._shown(known_campaign(document, new.id))

    def promote_when_complete(
        self, profile: str, fingerprint: str, *, by: str, force: bool = False
    ) -> ShownCampaign:
        """Promote an encoder once it has an artifact of every voice. If no campaign of the encoder is open,
        one is started.

        Args:
            force: promote it at the end of the campaign even if voices failed or no live worker has it then.

        Raises the same errors as `start`, but `CampaignOpen` only if the open campaign has another encoder.
        """
        self._check(profile, fingerprint)
        new = self._new(profile, fingerprint, sample=DEFAULT_SAMPLE, rate=None)
        wanted = new.having(promotes=True, force=force, promotes_by=by)
        decide = partial(with_promotion_at_the_end, campaign=wanted)
        with self._kept.lock(wait=True):
            document = self._commit(profile, decide, by=by, did="promote when complete")
        going = (one for one in reversed(document.campaigns) if one.open)
        return self._shown(next(one for one in going if one.fingerprint == fingerprint))

    def of_profile(self, profile: str) -> list[ShownCampaign]:
        """Return the campaigns of a profile, the newest first."""
        self._catalogue.get(profile)
        return self._all_shown(reversed(self._profiles.read_uncached(profile).campaigns))

    def get(self, profile: str, campaign_id: str) -> ShownCampaign:
        """Return a campaign. Raises `CampaignNotFound`."""
        return self._shown(self._find(profile, campaign_id))

    def pause(self, profile: str, campaign_id: str, *, by: str) -> ShownCampaign:
        """Pause a campaign: no further voices are started, and those under way are finished.

        Raises `CampaignNotFound`, `CampaignEnded`.
        """
        return self._to_state(profile, campaign_id, "paused", by=by)

    def resume(self, profile: str, campaign_id: str, *, by: str) -> ShownCampaign:
        """Resume a paused campaign. Raises `CampaignNotFound`, `CampaignEnded`."""
        return self._to_state(profile, campaign_id, "running", by=by)

    def cancel(self, profile: str, campaign_id: str, *, by: str) -> ShownCampaign:
        """Cancel a campaign. Its artifacts are kept. Raises `CampaignNotFound`, `CampaignEnded`."""
        return self._to_state(profile, campaign_id, "canceled", by=by, ends=True)

    def coverage(self, profile: str) -> dict[str, float]:
        """Return the share of voices that the last campaign of each encoder has covered, by fingerprint."""
        oldest_first = reversed(self.of_profile(profile))
        return {one.campaign.fingerprint: one.progress.coverage for one in oldest_first}

    def forget_voice(self, speaker_id: SpeakerId) -> None:
        """Remove the name of an erased voice from the failures of all campaigns. Raises `Unavailable`."""
        forget_voice(self._profiles, self._catalogue.names, self._kept, speaker_id)

    def signals(self) -> list[GaugeMetricFamily]:
        """Return the metrics of campaigns. Does not raise while Redis answers."""
        names = self._catalogue.names
        return campaign_signals(lambda: self._profiles.copied(names).values(), self._kept)

    def _check(self, profile: str, fingerprint: str) -> None:
        another_encoder(self._profiles, self._catalogue, profile, fingerprint)
        expect_worker(self._workers, profile, fingerprint, " first")

    def _new(self, profile: str, fingerprint: str, *, sample: int, rate: float | None) -> CampaignRecord:
        now = self._profiles.now()
        return CampaignRecord(
            id=self._clock.new_id(),
            profile=profile,
            fingerprint=fingerprint,
            sample=sample,
            rate=rate,
            created_at=now,
            changed_at=now,
        )

    def _find(self, profile: str, campaign_id: str) -> CampaignRecord:
        self._catalogue.get(profile)
        found = self._profiles.read_uncached(profile).campaign(campaign_id)
        if found is None:
            raise CampaignNotFound(
                f"There is no campaign {campaign_id[:80]!a} of profile '{profile}'. GET "
                f"/v1/profiles/{profile}/campaigns lists them.",
                param="campaign_id",
            )
        return found

    def _to_state(
        self,
        profile: str,
        campaign_id: str,
        state: CampaignState,
        *,
        by: str,
        ends: bool = False,
    ) -> ShownCampaign:
        """Change the state of a campaign that is not over. If it already has this state, nothing changes.

        Args:
            ends: True if the new state ends the campaign. Its jobs are withdrawn only after the commit,
                because a runner could otherwise open them again if the lock was lost.
        """
        with self._kept.lock(wait=True):
            campaign = self._find(profile, campaign_id)
            progress = self._shown(campaign).progress if ends and campaign.open else None
            decide = partial(
                with_campaign_state,
                campaign_id=campaign_id,
                state=state,
                now=self._profiles.now(),
                result=progress.at_its_end() if progress else None,
            )
            document = self._commit(profile, decide, by=by, did=f"campaign {state}")
            if progress is not None:
                self._prepare(campaign).withdraw(progress)
                self._kept.forget(campaign)
        return self._shown(known_campaign(document, campaign_id))

    def _commit(
        self, profile: str, decide: Callable[[ProfileDocument], ProfileDocument], *, by: str, did: str
    ) -> ProfileDocument:
        document = self._profiles.change(profile, decide, by=by, did=did)
        log.info("campaign.changed", profile=profile, did=did, by=by)
        return document

    def _shown(self, campaign: CampaignRecord) -> ShownCampaign:
        return self._all_shown([campaign])[0]

    def _all_shown(self, campaigns: Iterable[CampaignRecord]) -> list[ShownCampaign]:
        found = list(campaigns)
        progress = self._kept.of(found)
        return [ShownCampaign(one, progress[one.id]) for one in found]


def _not_promoted(progress: Progress) -> str:
    """Return a message that lists the voices that prevented the promotion, and what an operator can do."""
    names = [f"{one.namespace}/{one.voice}" for one in progress.named[:_IN_A_REASON]]
    if (others := progress.failed - len(names)) > 0:
        names.append(f"{others} more")
    listed = f" ({', '.join(names)})" if progress.named else ""
    voices = "1 voice" if progress.failed == 1 else f"{progress.failed} voices"
    return (
        f"{voices} could not be prepared{listed}, so the encoder was not promoted "
        "automatically. To promote it nevertheless, send force=true"
    )
