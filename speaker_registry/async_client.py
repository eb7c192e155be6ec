"""The client for asyncio: a thin shell that carries out plans.

`client` has the other shell, with the same methods, and says what each does. Two files, because most programs
want one of them, and asyncio takes its time to load.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Literal, Self

import httpx
from numpy.typing import ArrayLike

from speaker_registry.artifact import Artifact
from speaker_registry.cache import ArtifactCache
from speaker_registry.calls import Item, Listing, Registration, key_request, parse_target
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.exchange import BodyReader, Outcome, Plan, Reply, Result, RetryPolicy, Sleep, Step
from speaker_registry.fetching import Clip, File
from speaker_registry.schemas import (
    ApiKey,
    ArtifactDescriptor,
    Job,
    NewApiKey,
    Profile,
    Quota,
    Voice,
    VoiceVersion,
)
from speaker_registry.session import Audio, Default, Session, read_clip
from speaker_registry.waiting import OnProgress, Readiness, wait_job, wait_ready


class AsyncRegistryClient(Session):
    """`RegistryClient` for asyncio: same arguments, methods and errors. Lists are read with `async for`."""

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
        self._http = httpx.AsyncClient(transport=transport)

    async def register(
        self,
        name: str,
        audio: Audio | None = None,
        *,
        embedding: ArrayLike | None = None,
        consent: str,
        ref_text: str | None = None,
        description: str | None = None,
    ) -> Registration:
        return await self._run(
            self._calls.register(
                name,
                clip=None if audio is None else await asyncio.to_thread(read_clip, audio),
                embedding=embedding,
                consent=consent,
                ref_text=ref_text,
                description=description,
            )
        )

    async def wait_ready(
        self,
        speaker: str,
        profile: str | None = None,
        timeout: float = 600.0,
        on_progress: OnProgress | None = None,
    ) -> Readiness:
        """`on_progress` is an ordinary function: it is called, not awaited."""
        return await self._run(wait_ready(self._policy, parse_target(speaker), profile, timeout, on_progress))

    async def fetch(
        self,
        speaker: str,
        profile: str,
        *,
        version: int | str | None = None,
        wait: float = 0.0,
        max_age: float | None = None,
        stale_if_error: float = 0.0,
    ) -> Artifact:
        return await self._run(
            self._fetching.fetch(parse_target(speaker, version), profile, wait, max_age, stale_if_error)
        )

    async def download(
        self, speaker: str, profile: str, *, version: int | str | None = None, wait: float = 0.0
    ) -> File:
        return await self._run(self._fetching.file(parse_target(speaker, version), profile, wait))

    async def clip(self, speaker: str, version: int | str | None = None) -> Clip:
        return await self._run(self._fetching.clip(parse_target(speaker, version)))

    def list(
        self,
        *,
        profile: str | None = None,
        state: str | None = None,
        q: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Voice]:
        return self._pages(self._calls.voices(profile, state, q, limit))

    async def get(self, name: str) -> Voice:
        return await self._run(self._calls.voice(name))

    def versions(self, name: str, *, limit: int | None = None) -> AsyncIterator[VoiceVersion]:
        return self._pages(self._calls.versions(name, limit))

    async def version(self, speaker: str, version: int | str | None = None) -> VoiceVersion:
        return await self._run(self._calls.version(parse_target(speaker, version)))

    async def descriptor(
        self, speaker: str, profile: str, *, version: int | str | None = None, wait: float = 0.0
    ) -> ArtifactDescriptor:
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
        content = await asyncio.to_thread(read_clip, artifact, "artifact")
        return await self._run(self._calls.put(parse_target(speaker, version), profile, content, fingerprint))

    async def delete(self, name: str) -> None:
        await self._run(self._calls.delete(name))

    def jobs(
        self,
        *,
        state: str | None = None,
        voice: str | None = None,
        profile: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Job]:
        return self._pages(self._calls.jobs(state, voice, profile, limit))

    async def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        return await self._run(self._calls.job(job_id, wait))

    async def extract(
        self, speaker: str, profile: str, *, version: int | str | None = None, force: bool = False
    ) -> ArtifactDescriptor:
        return await self._run(self._calls.extract(parse_target(speaker, version), profile, force=force))

    async def cancel(self, job_id: str) -> Job:
        return await self._run(self._calls.cancel(job_id))

    async def wait_job(self, job_id: str, timeout: float = 600.0) -> Job:
        return await self._run(wait_job(self._policy, job_id, timeout))

    def profiles(self) -> AsyncIterator[Profile]:
        return self._pages(self._calls.profiles())

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
        return await self._run(self._calls.rotate_key(key_id, grace_seconds))

    async def revoke_key(self, key_id: str, *, children: bool = False) -> None:
        await self._run(self._calls.revoke_key(key_id, children=children))

    def api_keys(self, *, limit: int | None = None) -> AsyncIterator[ApiKey]:
        return self._pages(self._calls.keys(limit))

    async def quota(self) -> Quota:
        return await self._run(self._calls.quota())

    async def close(self) -> None:
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
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                result: Result = end.value
                return result
            outcome = await self._perform(step)

    async def _perform(self, step: Step) -> Outcome:
        if isinstance(step, Sleep):
            await self._sleep(step.seconds)
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
        except (httpx.TransportError, TimeoutError) as error:
            return self._unreachable(error)
