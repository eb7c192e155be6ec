"""Artifacts of voices, for asyncio: fetching, uploading and extracting them, and looking up many at once."""

import asyncio
from collections.abc import Iterable, Sequence

from speaker_registry.artifact import Artifact
from speaker_registry.async_client.executor import AsyncPlanExecutor
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.fetching import PARALLEL_FETCHES, File, pairs_of
from speaker_registry.manifest_reading import read_manifest, read_manifest_page
from speaker_registry.manifests import MAX_PAGE, Manifest, ManifestPage
from speaker_registry.paths import parse_target
from speaker_registry.schemas import ArtifactDescriptor, ResolvedArtifact
from speaker_registry.session import Audio, read_clip


class AsyncArtifacts(AsyncPlanExecutor):
    async def fetch(
        self,
        speaker: str,
        profile: str,
        *,
        version: int | str | None = None,
        wait: float = 0.0,
        max_age: float | None = None,
        stale_if_error: float = 0.0,
        require_current: bool = False,
    ) -> Artifact:
        """Fetch the artifact of a version and verify it.

        See `RegistryClient.fetch`.
        """
        target = parse_target(speaker, version)
        plan = self._fetching.fetch(
            target, profile, wait, max_age, stale_if_error, require_current=require_current
        )
        return await self._run(plan)

    async def prefetch(
        self,
        voices: Iterable[str],
        profiles: Iterable[str],
        *,
        wait: float = 0.0,
        max_age: float | None = None,
    ) -> dict[tuple[str, str], SpeakerRegistryError]:
        """Fetch the artifacts of several voices for several profiles into the cache, eight at a time.

        See `RegistryClient.prefetch`.
        """
        room = asyncio.Semaphore(PARALLEL_FETCHES)

        async def fetch(pair: tuple[str, str]) -> SpeakerRegistryError | None:
            try:
                async with room:
                    await self.fetch(*pair, wait=wait, max_age=max_age)
            except SpeakerRegistryError as error:
                return error
            return None

        pairs = pairs_of(voices, profiles)
        errors = await asyncio.gather(*map(fetch, pairs))
        return {pair: error for pair, error in zip(pairs, errors, strict=True) if error}

    async def download(
        self, speaker: str, profile: str, *, version: int | str | None = None, wait: float = 0.0
    ) -> File:
        """Fetch an artifact together with the bytes of its file. Unlike `fetch`, this never uses the cache.

        See `RegistryClient.download`.
        """
        return await self._run(self._fetching.file(parse_target(speaker, version), profile, wait))

    async def descriptor(
        self, speaker: str, profile: str, *, version: int | str | None = None, wait: float = 0.0
    ) -> ArtifactDescriptor:
        """Get the properties and the state of an artifact without its bytes.

        See `RegistryClient.descriptor`.
        """
        return await self._run(self._calls.descriptor(parse_target(speaker, version), profile, wait))

    async def put(
        self,
        speaker: str,
        profile: str,
        artifact: Audio,
        *,
        version: int | str | None = None,
        fingerprint: str | None = None,
    ) -> ArtifactDescriptor:
        """Upload an artifact that was made elsewhere.

        See `RegistryClient.put`.
        """
        content = await asyncio.to_thread(read_clip, artifact, "artifact")
        return await self._run(self._calls.put(parse_target(speaker, version), profile, content, fingerprint))

    async def extract(
        self, speaker: str, profile: str, *, version: int | str | None = None, force: bool = False
    ) -> ArtifactDescriptor:
        """Extract an artifact of a version. Does nothing if the artifact exists, is being made, or has
        failed.

        See `RegistryClient.extract`.
        """
        return await self._run(self._calls.extract(parse_target(speaker, version), profile, force=force))

    async def resolve(self, voices: Sequence[str], profiles: Sequence[str]) -> Sequence[ResolvedArtifact]:
        """Find out what many voices stand for now, in as few requests as possible.

        See `RegistryClient.resolve`.
        """
        return await self._run(self._calls.resolve(voices, profiles))

    async def manifest(self, profile: str, known: Manifest | None = None) -> Manifest:
        """Read which voices an engine of a profile should hold. See `RegistryClient.manifest`."""
        return await self._run(read_manifest(self._policy, profile, known))

    async def manifest_page(
        self, profile: str, *, limit: int = MAX_PAGE, registry: str | None = None
    ) -> ManifestPage:
        """Read only the first page of a manifest. See `RegistryClient.manifest_page`."""
        return await self._run(read_manifest_page(self._policy, profile, limit, registry))
