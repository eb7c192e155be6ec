"""Starts, pauses, resumes, cancels and ends campaigns, on the document of their profile. Knows no HTTP.

Each change is decided on the newest document, so no lock is needed: of two operators who start a campaign at
once, the second is refused. The progress of a campaign is no part of its document before it is over.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from services.registry_api.operations.promote import another_encoder, expect_worker
from services.shared.model.clock import Clock
from services.shared.model.profile_document import (
    CampaignRecord,
    ProfileDocument,
    known_campaign,
    with_campaign,
    with_campaign_state,
    with_promotion_at_the_end,
)
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.profile_records import ProfileRecords
from services.shared.view.workers import Workers
from speaker_registry.errors import CampaignNotFound, CampaignOpen
from speaker_registry.schemas import DEFAULT_SAMPLE, CampaignState

log = structlog.get_logger(__name__)

Decide = Callable[[ProfileDocument], ProfileDocument]
"""A pure change of a profile's document, which refuses by raising."""


class Steering:
    """Changes the campaigns of all profiles. Methods raise `ProfileUnknown` and `Unavailable`."""

    def __init__(
        self, profiles: ProfileRecords, workers: Workers, catalogue: ProfileCatalogue, clock: Clock
    ) -> None:
        self._profiles = profiles
        self._workers = workers
        self._catalogue = catalogue
        self._clock = clock

    def start(
        self,
        profile: str,
        fingerprint: str,
        *,
        by: str,
        sample: int = DEFAULT_SAMPLE,
        rate: float | None = None,
    ) -> CampaignRecord:
        """Start a campaign in which the workers of an encoder extract every voice.

        Raises:
            EncoderUnknown: no worker ever came with this fingerprint for the profile.
            EncoderCurrent: it is the current one already.
            EncoderUnserved: no live worker has it.
            CampaignOpen: another campaign of the profile is not over.
        """
        self._check(profile, fingerprint)
        new = self._new(fingerprint, sample=sample, rate=rate)
        return known_campaign(
            self._change(profile, partial(with_campaign, campaign=new), by=by, did="start campaign"), new.id
        )

    def promote_when_complete(
        self, profile: str, fingerprint: str, *, by: str, force: bool = False
    ) -> CampaignRecord:
        """Promote an encoder once it has an artifact of every voice. A campaign is started if there is none.

        Raises what `start` raises, the last only if the other campaign is one of another encoder.
        """
        self._check(profile, fingerprint)
        new = self._new(fingerprint, sample=DEFAULT_SAMPLE, rate=None).having(promotes=True, force=force)
        decide = partial(with_promotion_at_the_end, campaign=new)
        document = self._change(profile, decide, by=by, did="promote when complete")
        return next(one for one in reversed(document.campaigns) if one.fingerprint == fingerprint)

    def pause(self, profile: str, campaign_id: str, *, by: str) -> CampaignRecord:
        """Begin no further voices. Those that are under way end.

        Raises `CampaignNotFound`, `CampaignEnded`.
        """
        return self._to_state(profile, campaign_id, "paused", by=by)

    def resume(self, profile: str, campaign_id: str, *, by: str) -> CampaignRecord:
        """Go on with a paused campaign. Raises `CampaignNotFound`, `CampaignEnded`."""
        return self._to_state(profile, campaign_id, "running", by=by)

    def cancel(self, profile: str, campaign_id: str, *, by: str, result: dict[str, Any]) -> CampaignRecord:
        """End a campaign with this progress. What was extracted stays.

        Raises `CampaignNotFound`, `CampaignEnded`.
        """
        return self._to_state(profile, campaign_id, "canceled", by=by, result=result)

    def end(
        self, profile: str, campaign_id: str, state: CampaignState, *, result: dict[str, Any]
    ) -> CampaignRecord:
        """End a campaign that has reached every voice, or whose encoder was promoted.

        Raises `CampaignNotFound`, `CampaignEnded`: an operator canceled it meanwhile.
        """
        return self._to_state(profile, campaign_id, state, by="campaign", result=result)

    def of_profile(self, profile: str) -> list[CampaignRecord]:
        """Return the campaigns of a profile, the newest first."""
        self._catalogue.get(profile)
        return list(reversed(self._profiles.read(profile).campaigns))

    def get(self, profile: str, campaign_id: str) -> CampaignRecord:
        """Return a campaign. Raises `CampaignNotFound`."""
        self._catalogue.get(profile)
        try:
            return known_campaign(self._profiles.read(profile), campaign_id)
        except CampaignNotFound:
            raise _not_found(profile, campaign_id) from None

    def open(self) -> list[tuple[str, CampaignRecord]]:
        """Return the campaigns of all profiles that are not over, each with its profile."""
        names = sorted(self._catalogue.names)
        return [(name, one) for name in names for one in self._profiles.read(name).campaigns if one.open]

    def _to_state(
        self,
        profile: str,
        campaign_id: str,
        state: CampaignState,
        *,
        by: str,
        result: dict[str, Any] | None = None,
    ) -> CampaignRecord:
        decide = partial(
            with_campaign_state, campaign_id=campaign_id, state=state, now=self._profiles.now(), result=result
        )
        try:
            document = self._change(profile, decide, by=by, did=f"campaign {state}")
        except CampaignNotFound:
            raise _not_found(profile, campaign_id) from None
        return known_campaign(document, campaign_id)

    def _change(self, profile: str, decide: Decide, *, by: str, did: str) -> ProfileDocument:
        self._catalogue.get(profile)
        try:
            document = self._profiles.change(profile, decide, by=by, did=did)
        except CampaignOpen as error:
            raise CampaignOpen(f"Profile '{profile}': {error.message}", param="fingerprint") from None
        log.info("campaign.changed", profile=profile, did=did, by=by)
        return document

    def _check(self, profile: str, fingerprint: str) -> None:
        another_encoder(self._profiles, self._catalogue, profile, fingerprint)
        expect_worker(self._workers, profile, fingerprint, "before a campaign can use it")

    def _new(self, fingerprint: str, *, sample: int, rate: float | None) -> CampaignRecord:
        now = self._profiles.now()
        return CampaignRecord(
            id=self._clock.new_id(),
            fingerprint=fingerprint,
            sample=sample,
            rate=rate,
            created_at=now,
            changed_at=now,
        )


def _not_found(profile: str, campaign_id: str) -> CampaignNotFound:
    return CampaignNotFound(
        f"There is no campaign {campaign_id[:80]!a} of profile '{profile}'. GET "
        f"/v1/profiles/{profile}/campaigns lists them.",
        param="campaign_id",
    )
