"""Clips of versions, for asyncio: the uploaded file, its decoded samples, and pictures of it."""

from speaker_registry.async_client.executor import AsyncPlanExecutor
from speaker_registry.fetching import Clip, ClipPicture, PictureKind
from speaker_registry.paths import parse_target
from speaker_registry.reference_audio import ReferenceAudio


class AsyncClips(AsyncPlanExecutor):
    async def clip(self, speaker: str, version: int | str | None = None) -> Clip:
        """Fetch the clip of a version as it was uploaded. The API key needs the scope `audio:read`.

        See `RegistryClient.clip`.
        """
        return await self._run(self._fetching.clip(parse_target(speaker, version)))

    async def samples(self, speaker: str, version: int | str | None = None) -> ReferenceAudio:
        """Fetch the decoded samples of a version's clip: mono, float32 [N], at the clip's own sample rate.

        See `RegistryClient.samples`.
        """
        return await self._run(self._fetching.samples(parse_target(speaker, version)))

    async def picture(
        self,
        speaker: str,
        kind: PictureKind = "waveform",
        *,
        version: int | str | None = None,
        wait: float = 30.0,
    ) -> ClipPicture:
        """Fetch a picture of a version's clip: `waveform` or `mel`.

        See `RegistryClient.picture`.
        """
        return await self._run(self._fetching.picture(parse_target(speaker, version), kind, wait))
