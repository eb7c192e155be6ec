"""Encoders of profiles, for asyncio: promoting another one, and the campaigns that prepare its promotion."""

from collections.abc import AsyncIterator
from typing import Literal

from speaker_registry.arguments import campaign_request, promotion_request
from speaker_registry.async_client.executor import AsyncPlanExecutor
from speaker_registry.schemas import DEFAULT_SAMPLE, Campaign, Profile, ProfileChange


class AsyncEncoders(AsyncPlanExecutor):
    def profiles(self) -> AsyncIterator[Profile]:
        """Iterate over the profiles that the registry knows, with the number of workers that serve each.

        See `RegistryClient.profiles`.
        """
        return self._pages(self._calls.profiles())

    async def promote_encoder(
        self,
        profile: str,
        fingerprint: str,
        *,
        when: Literal["now", "complete"] = "now",
        force: bool = False,
    ) -> Profile:
        """Make another encoder the current one of a profile, for all namespaces.

        See `RegistryClient.promote_encoder`.
        """
        wanted = promotion_request(fingerprint, when=when, force=force)
        return await self._run(self._calls.promote_encoder(profile, wanted))

    def profile_history(self, profile: str, *, limit: int | None = None) -> AsyncIterator[ProfileChange]:
        """Iterate over the decisions that made an encoder the current one, newest first. See
        `RegistryClient.profile_history`.
        """
        return self._pages(self._calls.profile_history(profile, limit))

    async def start_campaign(
        self, profile: str, fingerprint: str, *, sample: int = DEFAULT_SAMPLE, rate: float | None = None
    ) -> Campaign:
        """Have the workers of another encoder extract every voice in the background, ahead of its promotion.

        See `RegistryClient.start_campaign`.
        """
        wanted = campaign_request(fingerprint, sample=sample, rate=rate)
        return await self._run(self._calls.start_campaign(profile, wanted))

    def campaigns(self, profile: str, *, limit: int | None = None) -> AsyncIterator[Campaign]:
        """Iterate over the campaigns of a profile, newest first. See `RegistryClient.campaigns`."""
        return self._pages(self._calls.campaigns(profile, limit))

    async def campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Get a campaign with its progress. See `RegistryClient.campaign`."""
        return await self._run(self._calls.campaign(profile, campaign_id))

    async def pause_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Pause a campaign, so that it begins no further voices. See `RegistryClient.pause_campaign`."""
        return await self._run(self._calls.change_campaign(profile, campaign_id, "pause"))

    async def resume_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Resume a paused campaign. See `RegistryClient.resume_campaign`."""
        return await self._run(self._calls.change_campaign(profile, campaign_id, "resume"))

    async def cancel_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Cancel a campaign. The artifacts that it has made stay. See `RegistryClient.cancel_campaign`."""
        return await self._run(self._calls.change_campaign(profile, campaign_id, "cancel"))
