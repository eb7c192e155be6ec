"""The blocking client: a thin shell that carries out plans.

What a call asks and what its answer means is in `calls`, `fetching`, `waiting` and `exchange`; `async_client`
has the other shell, with the same methods.
"""

import time
from collections.abc import Callable, Iterable, Iterator
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


class RegistryClient(Session):
    """Talks to one registry. Safe to share between threads; close it, or use it as a context manager.

    Args:
        url: of the registry; without it, `SPEAKER_REGISTRY_URL`.
        api_key: without it, `SPEAKER_REGISTRY_API_KEY`.
        namespace: for a key that is for any; without it, `SPEAKER_REGISTRY_NAMESPACE`, else `default`.
        timeout: seconds for one call over all its attempts and pauses. What a call may `wait` comes on top.
        retries: further attempts after 408, 429, 5xx and lost connections.
        cache: where artifacts are kept; by default one of its own, None for none. Clients may share one.
        transport: httpx's, instead of a network.
        clock, sleep: instead of real time.

    Raises:
        ValueError: the URL or the key cannot be one.

    Every call raises subclasses of `SpeakerRegistryError`; `Unavailable` when there was no answer.
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
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(
            url, api_key, namespace, RetryPolicy(timeout_seconds=timeout, retries=retries, clock=clock), cache
        )
        self._sleep = sleep
        self._http = httpx.Client(transport=transport)

    def register(
        self,
        name: str,
        audio: Audio | None = None,
        *,
        embedding: ArrayLike | None = None,
        consent: str,
        ref_text: str | None = None,
        description: str | None = None,
    ) -> Registration:
        """Upload a clip (or a ready speaker embedding) as a new version of a voice; extraction follows.

        Args:
            ref_text: what is said in the clip, word for word.
        """
        return self._run(
            self._calls.register(
                name,
                clip=None if audio is None else read_clip(audio),
                embedding=embedding,
                consent=consent,
                ref_text=ref_text,
                description=description,
            )
        )

    def wait_ready(
        self,
        speaker: str,
        profile: str | None = None,
        timeout: float = 600.0,
        on_progress: OnProgress | None = None,
    ) -> Readiness:
        """Wait until a version can be fetched for a profile, or for all required ones.

        Args:
            speaker: `alice@3`, `alice@prod`, or `alice`, which means the newest version of it, ready or not.
            on_progress: called with each `Readiness` seen, the last one too.

        Raises:
            ArtifactFailed: with the reason.
            ArtifactNotReady: `timeout` seconds have passed.
        """
        return self._run(wait_ready(self._policy, parse_target(speaker), profile, timeout, on_progress))

    def fetch(
        self,
        speaker: str,
        profile: str,
        *,
        version: int | str | None = None,
        wait: float = 0.0,
        max_age: float | None = None,
        stale_if_error: float = 0.0,
    ) -> Artifact:
        """The artifact of a version, checked. Its tensors are read-only: other callers may have the same.

        Args:
            speaker: `alice`, `alice@3` or `alice@prod`; what follows `@` may be given as `version` instead.
            wait: seconds to wait for one that is not ready.
            max_age: serve from memory, without asking, what the registry confirmed within so many seconds.
            stale_if_error: the same, but only when the registry cannot be reached.

        Raises:
            NotFound: no such voice, version, alias or profile.
            ArtifactNotReady, ArtifactFailed, ArtifactStale: there is none to be had (yet).
            DigestMismatch, InvalidArtifact: what came is damaged, or not what was asked for.
        """
        return self._run(
            self._fetching.fetch(parse_target(speaker, version), profile, wait, max_age, stale_if_error)
        )

    def download(
        self, speaker: str, profile: str, *, version: int | str | None = None, wait: float = 0.0
    ) -> File:
        """As `fetch`, with the file's own bytes, never from memory."""
        return self._run(self._fetching.file(parse_target(speaker, version), profile, wait))

    def clip(self, speaker: str, version: int | str | None = None) -> Clip:
        """The clip of a version, as it was uploaded. The key must be for `audio:read`.

        Raises:
            NotFound: no such voice, version or alias; or it was made from a ready embedding.
            DigestMismatch: what came is damaged.
        """
        return self._run(self._fetching.clip(parse_target(speaker, version)))

    def list(
        self,
        *,
        profile: str | None = None,
        state: str | None = None,
        q: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Voice]:
        """All voices, read page by page as they are consumed. `limit`: stop after so many."""
        return self._pages(self._calls.voices(profile, state, q, limit))

    def get(self, name: str) -> Voice:
        return self._run(self._calls.voice(name))

    def versions(self, name: str, *, limit: int | None = None) -> Iterator[VoiceVersion]:
        return self._pages(self._calls.versions(name, limit))

    def version(self, speaker: str, version: int | str | None = None) -> VoiceVersion:
        """One version: `alice@3`, `alice@prod`; `alice` is the one its name stands for now."""
        return self._run(self._calls.version(parse_target(speaker, version)))

    def descriptor(
        self, speaker: str, profile: str, *, version: int | str | None = None, wait: float = 0.0
    ) -> ArtifactDescriptor:
        """What an artifact is and where it stands, without its bytes."""
        return self._run(self._calls.descriptor(parse_target(speaker, version), profile, wait))

    def put(
        self,
        speaker: str,
        profile: str,
        artifact: Audio,
        *,
        version: int | str | None = None,
        fingerprint: str | None = None,
    ) -> ArtifactDescriptor:
        """Bring a ready artifact: a safetensors file's path, its bytes, or the open file.

        Args:
            fingerprint: what made it (`sha256:…`), where the file has no manifest that says so.

        Raises:
            InvalidArtifact: it is not what the profile says, of another clip, or does not say what made it.
            CacheUnsupported: the profile needs a transcript, and the version has none. FingerprintMismatch:
            the profile's artifacts are made with something else now.
        """
        content = read_clip(artifact, "artifact")
        return self._run(self._calls.put(parse_target(speaker, version), profile, content, fingerprint))

    def delete(self, name: str) -> None:
        """Delete a voice with all its versions."""
        self._run(self._calls.delete(name))

    def jobs(
        self,
        *,
        state: str | None = None,
        voice: str | None = None,
        profile: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        return self._pages(self._calls.jobs(state, voice, profile, limit))

    def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        """`wait`: seconds that the registry may hold the answer back until something changes, at most 60."""
        return self._run(self._calls.job(job_id, wait))

    def extract(
        self, speaker: str, profile: str, *, version: int | str | None = None, force: bool = False
    ) -> ArtifactDescriptor:
        """Have an artifact of a version made, unless it is there, being made, or has failed.

        Args:
            speaker: `alice@3`, `alice@prod`, or `alice`, which means what its name stands for now.
            force: make it again in any case; what is there serves until the new one is ready. Such a call is
                not repeated where its answer is lost.

        Returns:
            Where it stands, with the `job_id` of what makes it: see `wait_job` and `cancel`.

        Raises:
            NotFound: no such voice, version, alias or profile. CacheUnsupported: nothing can be extracted.
        """
        return self._run(self._calls.extract(parse_target(speaker, version), profile, force=force))

    def cancel(self, job_id: str) -> Job:
        """Cancel a job that has not finished; a worker that is at it publishes nothing. Can be repeated.

        Raises:
            JobNotFound; JobFinished: it has ended otherwise, or its artifact is being stored.
        """
        return self._run(self._calls.cancel(job_id))

    def wait_job(self, job_id: str, timeout: float = 600.0) -> Job:
        """Wait until a job has finished, however it ends: see its `state` and `error`.

        Raises:
            JobNotFound; ArtifactNotReady: `timeout` seconds have passed.
        """
        return self._run(wait_job(self._policy, job_id, timeout))

    def profiles(self) -> Iterator[Profile]:
        return self._pages(self._calls.profiles())

    def create_key(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        namespace: str | None = None,
        expires_at: int | None = None,
        requests_per_minute: int | None = None,
        uploads_per_minute: int | None = None,
    ) -> NewApiKey:
        """Make an API key. Its `key` is in this answer and nowhere else.

        Not repeated where its answer is lost, nor after an error of the server: each time there would be one
        more key, which nobody has. See `api_keys` for whether it was made; it can be revoked.

        Args:
            scopes: see `scopes`. namespace: the caller's own without it; `*`: any. expires_at: Unix
            seconds; without it, the key ends with this client's own key, if that ends at all.

        Raises:
            InvalidRequest; QuotaExceeded; PermissionDenied: this client's key may not make such a key, or
                ends before that would. Unavailable: it may have been made all the same.
        """
        wanted = key_request(
            name,
            scopes,
            namespace=namespace,
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            uploads_per_minute=uploads_per_minute,
        )
        return self._run(self._calls.create_key(wanted))

    def rotate_key(self, key_id: str, *, grace_seconds: int = 86_400) -> NewApiKey:
        """Make a key for the same as another, which ends `grace_seconds` later.

        Not repeated where its answer is lost, nor after an error of the server: see `create_key`.

        Args:
            key_id: its id, or the whole key, of which only the id is sent.

        Raises:
            ApiKeyNotFound; ApiKeyEnded: it is revoked or has expired. PermissionDenied: this client's key
                ends before the old one does. Unavailable: there may be a new key all the same, and the old
                one may end.
        """
        return self._run(self._calls.rotate_key(key_id, grace_seconds))

    def revoke_key(self, key_id: str, *, children: bool = False) -> None:
        """Revoke an API key. Within a second of this call's return it is refused everywhere.

        Args:
            key_id: its id, or the whole key, of which only the id is sent.
            children: also revoke the keys that it made, those that these made, and so on.
        """
        self._run(self._calls.revoke_key(key_id, children=children))

    def api_keys(self, *, limit: int | None = None) -> Iterator[ApiKey]:
        """What is known of the namespace's API keys, oldest first; not the keys themselves. Of all
        namespaces, where this client's key is for any and none was named.
        """
        return self._pages(self._calls.keys(limit))

    def quota(self) -> Quota:
        """What is left before something is refused."""
        return self._run(self._calls.quota())

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pages(self, listing: Listing[Item]) -> Iterator[Item]:
        following: Listing[Item] | None = listing
        while following is not None:
            page = self._run(self._calls.page(following))
            yield from page.data
            following = following.following(page)

    def _run(self, plan: Plan[Result]) -> Result:
        outcome: Outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                result: Result = end.value
                return result
            outcome = self._perform(step)

    def _perform(self, step: Step) -> Outcome:
        if isinstance(step, Sleep):
            self._sleep(step.seconds)
            return None
        try:
            with self._http.stream(**self._arguments(step)) as response:
                body = BodyReader(step, response.headers, self._policy.clock)
                for chunk in response.iter_bytes():
                    body.add(chunk)
                return Reply(response.status_code, dict(response.headers), body.whole())
        except SpeakerRegistryError as error:
            return error
        except httpx.TransportError as error:
            return self._unreachable(error)
