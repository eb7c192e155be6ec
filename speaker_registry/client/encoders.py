"""Encoders of profiles: promoting another one, and the campaigns that prepare its promotion."""

from collections.abc import Iterator
from typing import Literal

from speaker_registry.arguments import campaign_request, promotion_request
from speaker_registry.client.executor import PlanExecutor
from speaker_registry.schemas import DEFAULT_SAMPLE, Campaign, Profile, ProfileChange


class Encoders(PlanExecutor):
    def profiles(self) -> Iterator[Profile]:
        """Iterate over the profiles that the registry knows, with the number of workers that serve each."""
        return self._pages(self._calls.profiles())

    def promote_encoder(
        self,
        profile: str,
        fingerprint: str,
        *,
        when: Literal["now", "complete"] = "now",
        force: bool = False,
    ) -> Profile:
        """Make another encoder the current one of a profile, for all namespaces.

        Every voice keeps its last artifact until its new one is ready. Promote a fingerprint of
        `Profile.former` to go back. The call is not retried if its answer is lost, because a second attempt
        would be refused; `profiles` tells which encoder is current.

        Args:
            profile: Name of the profile.
            fingerprint: Fingerprint of a candidate, or of a former encoder.
            when: `complete` promotes the encoder once its campaign has covered every voice, and starts that
                campaign if there is none.
            force: Promote the encoder even if no live worker has it, after which the profile is without a
                worker. With `complete`, also promote it if voices failed, which `Campaign.failures` lists.

        Returns:
            The profile with its new fingerprint. With `complete` it still has its current one.

        Raises:
            InvalidRequest: The name or the fingerprint is malformed.
            ProfileUnknown: There is no such profile.
            EncoderUnknown: No worker has ever announced this fingerprint for the profile.
            EncoderCurrent: The encoder is the current one already.
            EncoderUnserved: No live worker has the encoder, and `force` is false or a campaign is to start.
            CampaignOpen: With `complete`, a campaign for another encoder is not over.
            PermissionDenied: The client's key lacks `admin`, or is not for all namespaces.
            Unavailable: The registry did not answer. The encoder may have been promoted nevertheless.
        """
        wanted = promotion_request(fingerprint, when=when, force=force)
        return self._run(self._calls.promote_encoder(profile, wanted))

    def profile_history(self, profile: str, *, limit: int | None = None) -> Iterator[ProfileChange]:
        """Iterate over the decisions that made an encoder the current one of a profile, newest first.

        The registry remembers the last 100 decisions. Raises `ProfileUnknown`.
        """
        return self._pages(self._calls.profile_history(profile, limit))

    def start_campaign(
        self, profile: str, fingerprint: str, *, sample: int = DEFAULT_SAMPLE, rate: float | None = None
    ) -> Campaign:
        """Have the workers of another encoder extract every voice in the background, ahead of its promotion.

        The served artifacts do not change meanwhile. The call is not retried if its answer is lost;
        `campaigns` tells whether the campaign was started.

        Args:
            profile: Name of the profile.
            fingerprint: Fingerprint of a candidate, or of a former encoder.
            sample: Number of voices whose old and new artifacts are compared, from 1 to 200.
            rate: Maximum number of voices per second, from 0.01 to 1000. None sets no limit.

        Raises:
            InvalidRequest: An argument is malformed or out of range.
            ProfileUnknown: There is no such profile.
            EncoderUnknown: No worker has ever announced this fingerprint for the profile.
            EncoderCurrent: The encoder is the current one.
            EncoderUnserved: No live worker has the encoder.
            CampaignOpen: Another campaign of the profile is not over.
            PermissionDenied: The client's key lacks `admin`, or is not for all namespaces.
        """
        wanted = campaign_request(fingerprint, sample=sample, rate=rate)
        return self._run(self._calls.start_campaign(profile, wanted))

    def campaigns(self, profile: str, *, limit: int | None = None) -> Iterator[Campaign]:
        """Iterate over the campaigns of a profile, newest first."""
        return self._pages(self._calls.campaigns(profile, limit))

    def campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Get a campaign with its progress. Raises `CampaignNotFound`."""
        return self._run(self._calls.campaign(profile, campaign_id))

    def pause_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Pause a campaign, so that it begins no further voices. Raises `CampaignNotFound` or
        `CampaignEnded`.
        """
        return self._run(self._calls.change_campaign(profile, campaign_id, "pause"))

    def resume_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Resume a paused campaign. Raises `CampaignNotFound` or `CampaignEnded`."""
        return self._run(self._calls.change_campaign(profile, campaign_id, "resume"))

    def cancel_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Cancel a campaign. The artifacts that it has made stay. Raises `CampaignNotFound` or
        `CampaignEnded`.
        """
        return self._run(self._calls.change_campaign(profile, campaign_id, "cancel"))
