"""Voices and their versions, for asyncio: registering, reading, editing and deleting them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Literal

from numpy.typing import ArrayLike

from speaker_registry.async_client.executor import AsyncPlanExecutor
from speaker_registry.calls import Registration, target_of
from speaker_registry.paths import parse_target
from speaker_registry.schemas import PromotionPolicy, Voice, VoiceChange, VoiceVersion
from speaker_registry.session import Audio, Default, edited_members, read_upload
from speaker_registry.waiting import OnProgress, Readiness, wait_ready


class AsyncVoices(AsyncPlanExecutor):
    async def register(
        self,
        name: str,
        audio: Audio | None = None,
        *,
        embedding: ArrayLike | None = None,
        consent: str,
        ref_text: str | None = None,
        description: str | None = None,
        idempotency_key: str | None = None,
        dedupe: bool = True,
        voice_id: str | None = None,
        only_new: bool = False,
    ) -> Registration:
        """Upload a clip, or a precomputed speaker embedding, as a new version of a voice.

        See `RegistryClient.register`.
        """
        upload = await asyncio.to_thread(read_upload, audio, embedding, consent, ref_text, description)
        return await self._run(
            self._calls.register(
                name,
                upload,
                idempotency_key=idempotency_key,
                dedupe=dedupe,
                voice_id=voice_id,
                only_new=only_new,
            )
        )

    async def restore_version(
        self,
        name: str,
        number: int,
        audio: Audio | None = None,
        *,
        created_at: int,
        version_id: str | None = None,
        voice_id: str | None = None,
        only_new: bool = False,
        embedding: ArrayLike | None = None,
        consent: str,
        ref_text: str | None = None,
        description: str | None = None,
    ) -> Registration:
        """Register a version under a given number, creation time and id, as it was in another registry.

        See `RegistryClient.restore_version`.
        """
        upload = await asyncio.to_thread(read_upload, audio, embedding, consent, ref_text, description)
        return await self._run(
            self._calls.restore_version(
                name,
                number,
                upload,
                created_at=created_at,
                version_id=version_id,
                voice_id=voice_id,
                only_new=only_new,
            )
        )

    async def wait_ready(
        self,
        speaker: str | Registration,
        profile: str | None = None,
        timeout: float = 600.0,
        on_progress: OnProgress | None = None,
    ) -> Readiness:
        """Wait until a version is ready for a profile, or for all required profiles.

        See `RegistryClient.wait_ready`. `on_progress` is called and not awaited, so it must be an ordinary
        function.
        """
        return await self._run(wait_ready(self._policy, target_of(speaker), profile, timeout, on_progress))

    def list(
        self,
        *,
        profile: str | None = None,
        state: str | None = None,
        q: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Voice]:
        """Iterate over the voices. Pages are requested as they are needed.

        See `RegistryClient.list`.
        """
        return self._pages(self._calls.voices(profile, state, q, labels, limit))

    async def get(self, name: str) -> Voice:
        """Get a voice by its name or id. Raises `NotFound` if there is none.

        See `RegistryClient.get`.
        """
        return await self._run(self._calls.voice(name))

    async def edit_voice(
        self,
        name: str,
        *,
        description: str | Literal[Default.KEEP] | None = Default.KEEP,
        labels: Mapping[str, str | None] | None = None,
        pinned: bool | None = None,
        promotion: PromotionPolicy | None = None,
        if_match: str | None = None,
    ) -> Voice:
        """Change the description, the labels, the pin or the promotion policy of a voice.

        See `RegistryClient.edit_voice`.
        """
        members = edited_members(description, labels, pinned, promotion)
        return await self._run(self._noticed(name, self._calls.edit_voice(name, members, if_match)))

    def versions(self, name: str, *, limit: int | None = None) -> AsyncIterator[VoiceVersion]:
        """Iterate over the versions of a voice. Pages are requested as they are needed.

        See `RegistryClient.versions`.
        """
        return self._pages(self._calls.versions(name, limit))

    async def version(self, speaker: str, version: int | str | None = None) -> VoiceVersion:
        """Get one version, such as `alice@3` or `alice@prod`. A bare `alice` means its default version.

        See `RegistryClient.version`.
        """
        return await self._run(self._calls.version(parse_target(speaker, version)))

    def history(self, name: str, *, limit: int | None = None) -> AsyncIterator[VoiceChange]:
        """Iterate over the changes of a voice, newest first. See `RegistryClient.history`."""
        return self._pages(self._calls.history(name, limit))

    async def delete(self, name: str) -> None:
        """Delete a voice with all its versions. Raises `NotFound` if there is no such voice.

        See `RegistryClient.delete`.
        """
        await self._run(self._noticed(name, self._calls.delete(name)))

    async def delete_version(self, voice: str, version: int, *, if_match: str | None = None) -> None:
        """Delete one version of a voice. See `RegistryClient.delete_version`."""
        await self._run(self._noticed(voice, self._calls.delete_version(voice, version, if_match)))

    async def undelete(self, name: str) -> Voice:
        """Undelete the voice that was deleted last under this name. See `RegistryClient.undelete`."""
        return await self._run(self._noticed(name, self._calls.undelete(name)))
