"""The client for asyncio, a thin layer that executes plans with httpx.

`client` has the same methods in blocking form and documents them. The two clients are separate modules
because most programs need only one of them, and importing asyncio takes time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

import httpx
from numpy.typing import ArrayLike

from speaker_registry.arguments import campaign_request, key_request, promotion_request
from speaker_registry.artifact import Artifact
from speaker_registry.cache import ArtifactCache
from speaker_registry.calls import Alias, Registration, target_of
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.exchange import (
    BodyReader,
    Join,
    Outcome,
    Plan,
    Reply,
    Result,
    RetryPolicy,
    Sleep,
    Step,
    Work,
)
from speaker_registry.fetching import (
    PARALLEL_FETCHES,
    Clip,
    ClipPicture,
    File,
    PictureKind,
    pairs_of,
)
from speaker_registry.listings import Item, Listing
from speaker_registry.manifest_reading import read_manifest
from speaker_registry.manifests import Manifest
from speaker_registry.paths import parse_target
from speaker_registry.reference_audio import ReferenceAudio
from speaker_registry.schemas import (
    DEFAULT_SAMPLE,
    ApiKey,
    ArtifactDescriptor,
    Campaign,
    Health,
    Job,
    JobSummary,
    NewApiKey,
    Profile,
    Quota,
    ResolvedArtifact,
    Voice,
    VoiceAlias,
    VoiceChange,
    VoiceVersion,
)
from speaker_registry.session import (
    TRANSPORT_ERRORS,
    Audio,
    Default,
    Session,
    edited_members,
    no_cookies,
    read_clip,
)
from speaker_registry.waiting import OnProgress, Readiness, wait_job, wait_ready


class AsyncRegistryClient(Session):
    """A client for one speaker registry, for asyncio.

    It has the same arguments, methods and errors as `RegistryClient`, which documents them. Methods are
    awaited, and lists are read with `async for`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        namespace: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        cache: ArtifactCache | Literal[Default.CACHE] | None = Default.CACHE,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(
            url, api_key, namespace, RetryPolicy(timeout_seconds=timeout, retries=retries, clock=clock), cache
        )
        self._sleep = sleep
        self._http = httpx.AsyncClient(transport=transport, cookies=no_cookies())

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
    ) -> Registration:
        """Upload a clip, or a precomputed speaker embedding, as a new version of a voice.

        See `RegistryClient.register`.
        """
        return await self._run(
            self._calls.register(
                name,
                clip=None if audio is None else await asyncio.to_thread(read_clip, audio),
                embedding=embedding,
                consent=consent,
                ref_text=ref_text,
                description=description,
                idempotency_key=idempotency_key,
                dedupe=dedupe,
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
        return await self._run(
            self._fetching.fetch(
                parse_target(speaker, version),
                profile,
                wait,
                max_age,
                stale_if_error,
                require_current=require_current,
            )
        )

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
        if_match: str | None = None,
    ) -> Voice:
        """Change what people say about a voice. See `RegistryClient.edit_voice`."""
        members = edited_members(description, labels, pinned)
        return await self._run(self._calls.edit_voice(name, members, if_match))

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
        """Iterate over what was done to a voice, newest first. See `RegistryClient.history`."""
        return self._pages(self._calls.history(name, limit))

    def aliases(self, voice: str, *, limit: int | None = None) -> AsyncIterator[VoiceAlias]:
        """Iterate over the aliases of a voice. See `RegistryClient.aliases`."""
        return self._pages(self._calls.aliases(voice, limit))

    async def alias(self, voice: str, alias: str = "default") -> Alias:
        """Get an alias of a voice. See `RegistryClient.alias`."""
        return await self._run(self._calls.alias(voice, alias))

    async def move_alias(self, voice: str, alias: str, version: int, *, if_match: str | None = None) -> Alias:
        """Point an alias to a version, or make a new alias. See `RegistryClient.move_alias`."""
        return await self._run(self._calls.move_alias(voice, alias, version, if_match))

    async def remove_alias(self, voice: str, alias: str, *, if_match: str | None = None) -> None:
        """Remove an alias. `default` stays, and moves to new versions by itself again.

        See `RegistryClient.remove_alias`.
        """
        await self._run(self._calls.remove_alias(voice, alias, if_match))

    async def rollback(self, voice: str, to: int | None = None) -> Alias:
        """Move `default` to an older version. See `RegistryClient.rollback`."""
        return await self._run(self._calls.rollback(voice, to))

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

    async def delete(self, name: str) -> None:
        """Delete a voice with all its versions. Raises `NotFound` if there is no such voice.

        See `RegistryClient.delete`.
        """
        await self._run(self._calls.delete(name))

    async def delete_version(self, voice: str, version: int, *, if_match: str | None = None) -> None:
        """Delete one version of a voice. See `RegistryClient.delete_version`."""
        await self._run(self._calls.delete_version(voice, version, if_match))

    async def undelete(self, name: str) -> Voice:
        """Bring back the voice that was deleted last under this name. See `RegistryClient.undelete`."""
        return await self._run(self._calls.undelete(name))

    def jobs(
        self,
        *,
        state: str | None = None,
        voice: str | None = None,
        profile: str | None = None,
        created_after: float | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Job]:
        """Iterate over the extraction jobs. Pages are requested as they are needed.

        See `RegistryClient.jobs`.
        """
        return self._pages(self._calls.jobs(state, voice, profile, created_after, limit))

    async def jobs_summary(self) -> JobSummary:
        """Count the extraction jobs by state and profile.

        See `RegistryClient.jobs_summary`.
        """
        return await self._run(self._calls.jobs_summary())

    async def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        """Get a job.

        See `RegistryClient.job`.
        """
        return await self._run(self._calls.job(job_id, wait))

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

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job that has not finished. Canceling a job twice is not an error.

        See `RegistryClient.cancel`.
        """
        return await self._run(self._calls.cancel(job_id))

    async def wait_job(self, job_id: str, timeout: float = 600.0) -> Job:
        """Wait until a job has finished. Its `state` and `error` tell how it ended.

        See `RegistryClient.wait_job`.
        """
        return await self._run(wait_job(self._policy, job_id, timeout))

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
        """Begin no further voices of a campaign. See `RegistryClient.pause_campaign`."""
        return await self._run(self._calls.change_campaign(profile, campaign_id, "pause"))

    async def resume_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Go on with a paused campaign. See `RegistryClient.resume_campaign`."""
        return await self._run(self._calls.change_campaign(profile, campaign_id, "resume"))

    async def cancel_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """End a campaign. What it has made stays. See `RegistryClient.cancel_campaign`."""
        return await self._run(self._calls.change_campaign(profile, campaign_id, "cancel"))

    async def create_key(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        namespace: str | None = None,
        expires_at: int | None = None,
        requests_per_minute: int | None = None,
        uploads_per_minute: int | None = None,
    ) -> NewApiKey:
        """Make an API key. The secret `key` is in this answer and nowhere else.

        See `RegistryClient.create_key`.
        """
        wanted = key_request(
            name,
            scopes,
            namespace=namespace,
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            uploads_per_minute=uploads_per_minute,
        )
        return await self._run(self._calls.create_key(wanted))

    async def rotate_key(self, key_id: str, *, grace_seconds: int = 86_400) -> NewApiKey:
        """Replace an API key with a new one with the same permissions.

        See `RegistryClient.rotate_key`.
        """
        return await self._run(self._calls.rotate_key(key_id, grace_seconds))

    async def revoke_key(self, key_id: str, *, children: bool = False) -> None:
        """Revoke an API key. Every process refuses the key within a second after this call returns.

        See `RegistryClient.revoke_key`.
        """
        await self._run(self._calls.revoke_key(key_id, children=children))

    def api_keys(self, *, limit: int | None = None) -> AsyncIterator[ApiKey]:
        """Iterate over the namespace's API keys, oldest first, without their secrets.

        See `RegistryClient.api_keys`.
        """
        return self._pages(self._calls.keys(limit))

    async def health(self) -> Health:
        """Ask once whether the registry can serve requests. See `RegistryClient.health`."""
        return await self._run(self._calls.health())

    async def quota(self) -> Quota:
        """Get the limits of the namespace and this API key, and how much of them is used.

        See `RegistryClient.quota`.
        """
        return await self._run(self._calls.quota())

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _pages(self, listing: Listing[Item]) -> AsyncIterator[Item]:
        following: Listing[Item] | None = listing
        while following is not None:
            page = await self._run(self._calls.page(following))
            for item in page.data:
                yield item
            following = following.following(page)

    async def _run(self, plan: Plan[Result]) -> Result:
        outcome: Outcome = None
        try:
            while True:
                try:
                    step = plan.send(outcome)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                outcome = await self._perform(step)
        finally:
            plan.close()  # a canceled plan releases the calls that wait for it

    async def _perform(self, step: Step) -> Outcome:
        if isinstance(step, Sleep):
            await self._sleep(step.seconds)
            return None
        if isinstance(step, Work):
            await asyncio.to_thread(step.function)
            return None
        if isinstance(step, Join):
            await asyncio.wait([asyncio.wrap_future(step.done)], timeout=step.seconds)
            return None
        try:
            async with (
                asyncio.timeout(step.deadline - self._policy.clock()),
                self._http.stream(**self._arguments(step)) as response,
            ):
                body = BodyReader(step, response.headers, self._policy.clock)
                async for chunk in response.aiter_bytes():
                    body.add(chunk)
                return Reply(response.status_code, dict(response.headers), body.whole())
        except SpeakerRegistryError as error:
            return error
        except (*TRANSPORT_ERRORS, TimeoutError) as error:
            return self._unreachable(error)
