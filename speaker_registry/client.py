"""The blocking client, a thin layer that executes plans with httpx.

The modules `calls`, `fetching`, `waiting` and `exchange` define which requests a call makes and what the
answers mean. `async_client` has the same methods for asyncio.
"""

import concurrent.futures
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

import httpx
from numpy.typing import ArrayLike

from speaker_registry.arguments import campaign_request, key_request, promotion_request
from speaker_registry.artifact import Artifact
from speaker_registry.cache import ArtifactCache
from speaker_registry.calls import Alias, Registration, target_of
from speaker_registry.deadlines import Deadlines
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


class RegistryClient(Session):
    """A client for one speaker registry.

    A client can be shared between threads. Call `close` when done, or use the client as a context manager.

    Args:
        url: Address of the registry. Defaults to the environment variable `SPEAKER_REGISTRY_URL`.
        api_key: Defaults to the environment variable `SPEAKER_REGISTRY_API_KEY`.
        namespace: Namespace to use with an API key that is valid in every namespace. Defaults to the
            environment variable `SPEAKER_REGISTRY_NAMESPACE`, and else to `default`.
        timeout: Maximum duration of one call in seconds, including all attempts and the pauses between them.
            The `wait` of a call is added to it.
        retries: Number of further attempts after status 408, 429 or 5xx, or after a lost connection.
        cache: Cache for fetched artifacts. By default each client has a cache of its own. Several clients can
            share one, and None turns caching off.
        transport: httpx transport to use instead of the network.
        clock: Replaces `time.monotonic`, for tests.
        sleep: Replaces `time.sleep`, for tests.

    Raises:
        ValueError: The URL, the API key or the namespace is malformed, or a number is not accepted.

    Every method raises subclasses of `SpeakerRegistryError`. It raises `Unavailable` if the registry did not
    answer.
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
        self._http = httpx.Client(transport=transport, cookies=no_cookies())
        self._deadlines = Deadlines(clock)
        self._deadlines.apply_to(self._http)

    def register(
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

        The registry then extracts the artifacts. Use `wait_ready` to wait for them.

        Args:
            name: Name of the voice. A voice is created if there is none with this name.
            audio: The clip, as a path, as bytes or as a file opened in binary mode.
            embedding: A speaker embedding (one row of finite numbers), instead of `audio`.
            consent: Tells who agreed to what, or is the id of a recorded consent.
            ref_text: Transcript of the clip, word for word.
            description: Free text about the voice.
            idempotency_key: 1 to 255 characters. Calls with the same key and arguments make one version, also
                when they come from several processes. By default each call has a key of its own.
            dedupe: If true, an upload that equals the newest version returns that version.

        Raises:
            InvalidRequest: The name, the clip or another argument is not accepted. Subclasses such as
                `InvalidAudio` say more.
        """
        return self._run(
            self._calls.register(
                name,
                clip=None if audio is None else read_clip(audio),
                embedding=embedding,
                consent=consent,
                ref_text=ref_text,
                description=description,
                idempotency_key=idempotency_key,
                dedupe=dedupe,
            )
        )

    def wait_ready(
        self,
        speaker: str | Registration,
        profile: str | None = None,
        timeout: float = 600.0,
        on_progress: OnProgress | None = None,
    ) -> Readiness:
        """Wait until a version is ready for a profile, or for all required profiles.

        Args:
            speaker: What `register` returned, or a voice, such as `alice@3` or `alice@prod`. A bare `alice`
                means its default version, as in every other method.
            profile: The profile to wait for. Defaults to all required profiles.
            timeout: Maximum time to wait, in seconds.
            on_progress: Called with each `Readiness` received, including the last one.

        Raises:
            ArtifactFailed: An extraction failed. The message contains the reason.
            ArtifactNotReady: The version was not ready within `timeout` seconds.
        """
        return self._run(wait_ready(self._policy, target_of(speaker), profile, timeout, on_progress))

    def fetch(
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

        The tensors are read-only, because other callers may share them through the cache.

        Args:
            speaker: The voice, such as `alice`, `alice@3` or `alice@prod`.
            profile: The profile, such as `qwen3-tts-0.6b`.
            version: The version number or alias, instead of `@...` in `speaker`.
            wait: Seconds to wait for an artifact that is not ready.
            max_age: Return a cached artifact without a request if the registry confirmed it within this many
                seconds.
            stale_if_error: Return a cached artifact that was confirmed within this many seconds if the
                registry cannot be reached.
            require_current: Refuse an artifact of a former encoder, which the registry serves until the
                profile's current encoder has made one.

        Raises:
            NotFound: There is no such voice, version, alias or profile.
            ArtifactNotReady: The artifact is not ready yet.
            ArtifactFailed: The extraction failed.
            ArtifactStale: With `require_current`, a former encoder made the artifact.
            DigestMismatch: The received bytes are damaged.
            InvalidArtifact: The received file is not an artifact, or not the one that was requested.
        """
        return self._run(
            self._fetching.fetch(
                parse_target(speaker, version),
                profile,
                wait,
                max_age,
                stale_if_error,
                require_current=require_current,
            )
        )

    def prefetch(
        self,
        voices: Iterable[str],
        profiles: Iterable[str],
        *,
        wait: float = 0.0,
        max_age: float | None = None,
    ) -> dict[tuple[str, str], SpeakerRegistryError]:
        """Fetch the artifacts of several voices for several profiles into the cache, eight at a time.

        Args:
            voices: Voices, such as `alice`, `alice@3` or `alice@prod`.
            profiles: Profiles, such as `qwen3-tts-0.6b`.
            wait: Seconds to wait for each artifact that is not ready.
            max_age: As in `fetch`.

        Returns:
            The errors by voice and profile. It is empty if everything was fetched.
        """

        def fetch(pair: tuple[str, str]) -> SpeakerRegistryError | None:
            try:
                self.fetch(*pair, wait=wait, max_age=max_age)
            except SpeakerRegistryError as error:
                return error
            return None

        pairs = pairs_of(voices, profiles)
        with concurrent.futures.ThreadPoolExecutor(PARALLEL_FETCHES) as threads:
            errors = threads.map(fetch, pairs)
            return {pair: error for pair, error in zip(pairs, errors, strict=True) if error}

    def download(
        self, speaker: str, profile: str, *, version: int | str | None = None, wait: float = 0.0
    ) -> File:
        """Fetch an artifact together with the bytes of its file. Unlike `fetch`, this never uses the
        cache.
        """
        return self._run(self._fetching.file(parse_target(speaker, version), profile, wait))

    def clip(self, speaker: str, version: int | str | None = None) -> Clip:
        """Fetch the clip of a version as it was uploaded. The API key needs the scope `audio:read`.

        Raises:
            NotFound: There is no such voice, version or alias, or the version was made from an embedding.
            DigestMismatch: The received bytes are damaged.
        """
        return self._run(self._fetching.clip(parse_target(speaker, version)))

    def samples(self, speaker: str, version: int | str | None = None) -> ReferenceAudio:
        """Fetch the decoded samples of a version's clip: mono, float32 [N], at the clip's own sample rate.

        The API key needs the scope `audio:read`.

        Raises:
            NotFound: There is no such voice, version or alias, or the version was made from an embedding.
            DigestMismatch: The received bytes are damaged.
            InvalidAudio: The received file does not hold the samples of a clip.
        """
        return self._run(self._fetching.samples(parse_target(speaker, version)))

    def picture(
        self,
        speaker: str,
        kind: PictureKind = "waveform",
        *,
        version: int | str | None = None,
        wait: float = 30.0,
    ) -> ClipPicture:
        """Fetch a picture of a version's clip. Notebooks show it. The API key needs the scope `audio:read`.

        A worker draws the pictures of a clip when one is requested for the first time.

        Args:
            kind: `waveform`, which is an SVG file, or `mel` for the mel spectrogram, which is a PNG file.
            wait: Seconds to wait for a picture that is not drawn yet.

        Raises:
            NotFound: There is no such voice, version or alias, or the version was made from an embedding.
            ArtifactNotReady: The picture was not drawn within `wait` seconds.
            PicturesFailed: A worker could not draw it.
            DigestMismatch: The received bytes are damaged.
        """
        return self._run(self._fetching.picture(parse_target(speaker, version), kind, wait))

    def list(
        self,
        *,
        profile: str | None = None,
        state: str | None = None,
        q: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Voice]:
        """Iterate over the voices. Pages are requested as they are needed.

        Args:
            profile: Only voices that this profile can use, whether their artifacts are ready or not.
            state: Only voices in this state: `pending`, `processing`, `ready` or `failed`.
            q: Only voices whose name contains this text.
            labels: Only voices with all these labels.
            limit: Maximum number of voices.
        """
        return self._pages(self._calls.voices(profile, state, q, labels, limit))

    def get(self, name: str) -> Voice:
        """Get a voice by its name or id. Raises `NotFound` if there is none."""
        return self._run(self._calls.voice(name))

    def edit_voice(
        self,
        name: str,
        *,
        description: str | Literal[Default.KEEP] | None = Default.KEEP,
        labels: Mapping[str, str | None] | None = None,
        pinned: bool | None = None,
        if_match: str | None = None,
    ) -> Voice:
        """Change what people say about a voice. What is not given stays, and nothing is extracted.

        Args:
            name: Name or id of the voice.
            description: Free text about the voice. None removes it.
            labels: Labels to set. None as the value removes a label.
            pinned: Marks a voice that matters more than others, or ends that.
            if_match: ETag of the voice. If it has changed, the edit is refused.

        Raises:
            InvalidRequest: The description or a label is not accepted. The message names the label.
            NotFound: There is no such voice.
            PreconditionFailed: The voice has changed.
        """
        members = edited_members(description, labels, pinned)
        return self._run(self._calls.edit_voice(name, members, if_match))

    def versions(self, name: str, *, limit: int | None = None) -> Iterator[VoiceVersion]:
        """Iterate over the versions of a voice. Pages are requested as they are needed."""
        return self._pages(self._calls.versions(name, limit))

    def version(self, speaker: str, version: int | str | None = None) -> VoiceVersion:
        """Get one version, such as `alice@3` or `alice@prod`. A bare `alice` means its default version."""
        return self._run(self._calls.version(parse_target(speaker, version)))

    def history(self, name: str, *, limit: int | None = None) -> Iterator[VoiceChange]:
        """Iterate over what people and their keys have done to a voice, newest first.

        The registry remembers the last 100 changes, also of a deleted voice that can still be brought back.
        """
        return self._pages(self._calls.history(name, limit))

    def aliases(self, voice: str, *, limit: int | None = None) -> Iterator[VoiceAlias]:
        """Iterate over the aliases of a voice by name, except `latest`, which is computed."""
        return self._pages(self._calls.aliases(voice, limit))

    def alias(self, voice: str, alias: str = "default") -> Alias:
        """Get an alias of a voice. Raises `NotFound` if there is no such voice or alias."""
        return self._run(self._calls.alias(voice, alias))

    def move_alias(self, voice: str, alias: str, version: int, *, if_match: str | None = None) -> Alias:
        """Point an alias to a version, or make a new alias. Every engine then finds that version.

        Nothing is extracted. `default` stays where it was moved to until it is moved again or removed.

        Args:
            voice: Name or id of the voice.
            alias: `default`, or any other name of 1 to 64 of the characters `a-z 0-9 . _ -`.
            version: Number of the version.
            if_match: `etag` of the `Alias` that is to be moved. If somebody was faster, the move is refused.

        Returns:
            The alias, with the `previous_version` to which it pointed before.

        Raises:
            InvalidRequest: The alias or the version is malformed. `latest` is reserved.
            NotFound: There is no such voice or version.
            ArtifactFailed: An extraction of the version failed for a required profile. Repeat it first.
            PreconditionFailed: The alias is not the one that `if_match` describes.
            QuotaExceeded: The voice has as many aliases as the registry accepts.
        """
        return self._run(self._calls.move_alias(voice, alias, version, if_match))

    def remove_alias(self, voice: str, alias: str, *, if_match: str | None = None) -> None:
        """Remove an alias. `default` stays, and moves to new versions by itself again.

        Raises:
            NotFound: There is no such voice or alias.
            PreconditionFailed: The alias is not the one that `if_match` describes.
        """
        self._run(self._calls.remove_alias(voice, alias, if_match))

    def rollback(self, voice: str, to: int | None = None) -> Alias:
        """Move `default` to an older version. `remove_alias(voice, "default")` lets it move by itself again.

        Args:
            voice: Name or id of the voice.
            to: Number of the version. Defaults to the next lower one than that to which `default` points.

        Raises:
            NotFound: There is no such voice or version, or no older one.
            PreconditionFailed: Somebody else moved `default` at the same moment.
        """
        return self._run(self._calls.rollback(voice, to))

    def descriptor(
        self, speaker: str, profile: str, *, version: int | str | None = None, wait: float = 0.0
    ) -> ArtifactDescriptor:
        """Get the properties and the state of an artifact without its bytes.

        Args:
            wait: Seconds that the registry may hold the answer back until the artifact is ready, at most 60.
        """
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
        """Upload an artifact that was made elsewhere.

        Args:
            artifact: The safetensors file, as a path, as bytes or as a file opened in binary mode.
            fingerprint: Fingerprint of what made the artifact (`sha256:…`). Only needed if the file has no
                manifest that contains it.

        Raises:
            InvalidArtifact: The artifact does not match the profile, belongs to another clip, or has no
                fingerprint.
            CacheUnsupported: The profile needs a transcript, and the version has none.
            FingerprintMismatch: The profile's artifacts are now made with another fingerprint.
        """
        content = read_clip(artifact, "artifact")
        return self._run(self._calls.put(parse_target(speaker, version), profile, content, fingerprint))

    def delete(self, name: str) -> None:
        """Delete a voice with all its versions. Raises `NotFound` if there is no such voice."""
        self._run(self._calls.delete(name))

    def delete_version(self, voice: str, version: int, *, if_match: str | None = None) -> None:
        """Delete one version of a voice. The last version takes the voice along.

        Args:
            voice: Name or id of the voice.
            version: Number of the version.
            if_match: ETag of the version. If it has changed, nothing is deleted.

        Raises:
            NotFound: There is no such voice or version.
            Conflict: An alias points to the version. Move or remove the alias first.
        """
        self._run(self._calls.delete_version(voice, version, if_match))

    def undelete(self, name: str) -> Voice:
        """Bring back the voice that was deleted last under this name, while its grace period lasts.

        The call is not retried if its answer is lost; `get` tells whether the voice is back.

        Raises:
            NotFound: Nothing is left to bring back.
            VoiceExists: The name was registered again.
            QuotaExceeded: The namespace has no room for the voice any more.
        """
        return self._run(self._calls.undelete(name))

    def jobs(
        self,
        *,
        state: str | None = None,
        voice: str | None = None,
        profile: str | None = None,
        created_after: float | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Iterate over the extraction jobs. Pages are requested as they are needed.

        Args:
            state: Only jobs in this state, such as `queued` or `failed`.
            voice: Only jobs of the voice with this name.
            profile: Only jobs of this profile.
            created_after: Only jobs that were created after this time, in Unix seconds.
            limit: Maximum number of jobs.
        """
        return self._pages(self._calls.jobs(state, voice, profile, created_after, limit))

    def jobs_summary(self) -> JobSummary:
        """Count the extraction jobs by state and profile, with the oldest ones and the rates of the last
        minute, hour and day. This takes one request, however many jobs there are.
        """
        return self._run(self._calls.jobs_summary())

    def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        """Get a job.

        Args:
            wait: Seconds that the registry may hold the answer back until the job changes, at most 60.
        """
        return self._run(self._calls.job(job_id, wait))

    def extract(
        self, speaker: str, profile: str, *, version: int | str | None = None, force: bool = False
    ) -> ArtifactDescriptor:
        """Extract an artifact of a version. Does nothing if the artifact exists, is being made, or has
        failed.

        Args:
            speaker: The voice, such as `alice@3` or `alice@prod`. A bare `alice` means its default version.
            force: Extract the artifact again in any case. An existing artifact is served until the new one is
                ready. A forced call is not retried if its answer is lost.

        Returns:
            The state of the artifact, with the `job_id` of its extraction. See `wait_job` and `cancel`.

        Raises:
            NotFound: There is no such voice, version, alias or profile.
            CacheUnsupported: This artifact cannot be extracted from this version.
        """
        return self._run(self._calls.extract(parse_target(speaker, version), profile, force=force))

    def resolve(self, voices: Sequence[str], profiles: Sequence[str]) -> Sequence[ResolvedArtifact]:
        """Find out what many voices stand for now, in as few requests as possible.

        Args:
            voices: Each is a voice such as `alice`, `alice@3` or `alice@prod`.
            profiles: 1 to 64 names of profiles. Every voice is resolved for every profile.

        Returns:
            One entry for each voice and profile, in the order of the voices. An entry has the version and, if
            the artifact is ready, its digest. A voice that does not exist is an entry with an `error`.

        Raises:
            ProfileUnknown: There is no such profile.
        """
        return self._run(self._calls.resolve(voices, profiles))

    def manifest(self, profile: str, known: Manifest | None = None) -> Manifest:
        """Read which voices an engine of a profile should hold: all that the profile can use.

        Args:
            known: The manifest that was read before. Pages that have not changed are not sent again, and if
                nothing has changed, this very manifest is returned.

        Raises:
            ProfileUnknown: There is no such profile.
        """
        return self._run(read_manifest(self._policy, profile, known))

    def cancel(self, job_id: str) -> Job:
        """Cancel a job that has not finished. Canceling a job twice is not an error.

        A worker that is processing the job publishes nothing.

        Raises:
            JobNotFound: There is no such job.
            JobFinished: The job has ended in another way, or its artifact is being stored.
        """
        return self._run(self._calls.cancel(job_id))

    def wait_job(self, job_id: str, timeout: float = 600.0) -> Job:
        """Wait until a job has finished. Its `state` and `error` tell how it ended.

        Raises:
            JobNotFound: There is no such job.
            ArtifactNotReady: The job did not finish within `timeout` seconds.
        """
        return self._run(wait_job(self._policy, job_id, timeout))

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
            The profile with its new fingerprint; with `complete` as it is now.

        Raises:
            InvalidRequest: The name or the fingerprint is malformed.
            ProfileUnknown: There is no such profile.
            EncoderUnknown: No worker ever came with this fingerprint for the profile.
            EncoderCurrent: The encoder is the current one already.
            EncoderUnserved: No live worker has the encoder, and `force` is false or a campaign is to start.
            CampaignOpen: With `complete`, a campaign for another encoder is not over.
            PermissionDenied: The client's key lacks `admin`, or is not for all namespaces.
            Unavailable: The registry did not answer. The encoder may have been promoted nevertheless.
        """
        wanted = promotion_request(fingerprint, when=when, force=force)
        return self._run(self._calls.promote_encoder(profile, wanted))

    def start_campaign(
        self, profile: str, fingerprint: str, *, sample: int = DEFAULT_SAMPLE, rate: float | None = None
    ) -> Campaign:
        """Have the workers of another encoder extract every voice in the background, ahead of its promotion.

        Nothing that is served changes meanwhile. The call is not retried if its answer is lost; `campaigns`
        tells whether the campaign was started.

        Args:
            profile: Name of the profile.
            fingerprint: Fingerprint of a candidate, or of a former encoder.
            sample: Number of voices whose old and new artifacts are compared, from 1 to 200.
            rate: Highest number of voices for each second, from 0.01 to 1000. None sets no limit.

        Raises:
            InvalidRequest: An argument is malformed or out of range.
            ProfileUnknown: There is no such profile.
            EncoderUnknown: No worker ever came with this fingerprint for the profile.
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
        """Begin no further voices of a campaign. Raises `CampaignNotFound` or `CampaignEnded`."""
        return self._run(self._calls.change_campaign(profile, campaign_id, "pause"))

    def resume_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """Go on with a paused campaign. Raises `CampaignNotFound` or `CampaignEnded`."""
        return self._run(self._calls.change_campaign(profile, campaign_id, "resume"))

    def cancel_campaign(self, profile: str, campaign_id: str) -> Campaign:
        """End a campaign. What it has made stays. Raises `CampaignNotFound` or `CampaignEnded`."""
        return self._run(self._calls.change_campaign(profile, campaign_id, "cancel"))

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
        """Make an API key. The secret `key` is in this answer and nowhere else.

        The call is not retried if its answer is lost, or after a server error, because each attempt could
        make one more key that is unknown to the caller. Use `api_keys` to see whether the key was made, and
        `revoke_key` to revoke it.

        Args:
            name: Free text that tells people what the key is for.
            scopes: Permissions of the key, such as `voices:read` or `engine`. See `speaker_registry.scopes`.
            namespace: Namespace whose voices the key can use. Defaults to the caller's own. `*` means every
                namespace.
            expires_at: Expiry time in Unix seconds. By default the key expires together with this client's
                own key, or never if that does not expire.
            requests_per_minute: Rate limit of the key. Defaults to the limit of the registry.
            uploads_per_minute: Limit of uploads per minute. Defaults to the limit of the registry.

        Raises:
            InvalidRequest: An argument is not accepted.
            QuotaExceeded: There are as many keys as the registry allows.
            PermissionDenied: This client's key may not make such a key, or expires before the new key would.
            Unavailable: The registry did not answer. The key may have been made nevertheless.
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
        """Replace an API key with a new one with the same permissions.

        The old key is accepted for another `grace_seconds`. Like `create_key`, the call is not retried if its
        answer is lost, or after a server error.

        Args:
            key_id: Id of the old key. The whole key is accepted too, but only its id is sent.
            grace_seconds: Seconds until the old key is refused. The default is one day.

        Raises:
            ApiKeyNotFound: There is no such key.
            ApiKeyEnded: The old key is revoked or has expired.
            PermissionDenied: This client's key expires before the old key does.
            Unavailable: The registry did not answer. There may be a new key nevertheless, and the old one may
                end.
        """
        return self._run(self._calls.rotate_key(key_id, grace_seconds))

    def revoke_key(self, key_id: str, *, children: bool = False) -> None:
        """Revoke an API key. Every process refuses the key within a second after this call returns.

        Args:
            key_id: Id of the key. The whole key is accepted too, but only its id is sent.
            children: Also revoke the keys that were made with this key, the keys made with those, and so on.
        """
        self._run(self._calls.revoke_key(key_id, children=children))

    def api_keys(self, *, limit: int | None = None) -> Iterator[ApiKey]:
        """Iterate over the namespace's API keys, oldest first, without their secrets.

        If this client's key is valid in every namespace and no namespace was given, the list covers all
        namespaces.
        """
        return self._pages(self._calls.keys(limit))

    def health(self) -> Health:
        """Ask once whether the registry can serve requests. No API key is needed.

        Raises:
            Unavailable: There is no registry at the address. One that cannot serve now is described instead.
        """
        return self._run(self._calls.health())

    def quota(self) -> Quota:
        """Get the limits of the namespace and this API key, and how much of them is used."""
        return self._run(self._calls.quota())

    def close(self) -> None:
        """Close the connections."""
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
        try:
            while True:
                try:
                    step = plan.send(outcome)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                outcome = self._perform(step)
        finally:
            plan.close()  # an interrupted plan releases the calls that wait for it

    def _perform(self, step: Step) -> Outcome:
        if isinstance(step, Sleep):
            self._sleep(step.seconds)
            return None
        if isinstance(step, Work):
            step.function()
            return None
        if isinstance(step, Join):
            concurrent.futures.wait([step.done], step.seconds)
            return None
        try:
            with (
                self._deadlines.until(step.deadline),
                self._http.stream(**self._arguments(step)) as response,
            ):
                body = BodyReader(step, response.headers, self._policy.clock)
                for chunk in response.iter_bytes():
                    body.add(chunk)
                return Reply(response.status_code, dict(response.headers), body.whole())
        except SpeakerRegistryError as error:
            return error
        except TRANSPORT_ERRORS as error:
            return self._unreachable(error)
