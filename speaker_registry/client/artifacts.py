"""Artifacts of voices: fetching, uploading and extracting them, and looking up many at once."""

import concurrent.futures
from collections.abc import Iterable, Sequence

from speaker_registry.artifact import Artifact
from speaker_registry.client.executor import PlanExecutor
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.fetching import PARALLEL_FETCHES, File, pairs_of
from speaker_registry.manifest_reading import read_manifest, read_manifest_page
from speaker_registry.manifests import MAX_PAGE, Manifest, ManifestPage
from speaker_registry.paths import parse_target
from speaker_registry.schemas import ArtifactDescriptor, ResolvedArtifact
from speaker_registry.session import Audio, read_clip


class Artifacts(PlanExecutor):
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
            require_current: Refuse an artifact that the profile's current encoder did not make, which the
                registry serves until that encoder has made one.

        Raises:
            NotFound: There is no such voice, version, alias or profile.
            ArtifactNotReady: The artifact is not ready yet.
            ArtifactFailed: The extraction failed.
            ArtifactStale: With `require_current`, the current encoder did not make the artifact.
            DigestMismatch: The received bytes are damaged.
            InvalidArtifact: The received file is not an artifact, or not the one that was requested.
        """
        target = parse_target(speaker, version)
        plan = self._fetching.fetch(
            target, profile, wait, max_age, stale_if_error, require_current=require_current
        )
        return self._run(plan)

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
        """Fetch an artifact together with the bytes of its file. Unlike `fetch`, this never uses the cache.
        Raises the same errors as `fetch`.
        """
        return self._run(self._fetching.file(parse_target(speaker, version), profile, wait))

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
            Conflict: The version was made from another embedding, which is its artifact for the profile.
        """
        content = read_clip(artifact, "artifact")
        return self._run(self._calls.put(parse_target(speaker, version), profile, content, fingerprint))

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

    def manifest_page(
        self, profile: str, *, limit: int = MAX_PAGE, registry: str | None = None
    ) -> ManifestPage:
        """Read only the first page of a manifest. It tells which registry answers, and for which namespace.

        Args:
            limit: Maximum number of voices on the page.
            registry: Identity of the registry that should answer, as a page told it before.

        Raises:
            ProfileUnknown: There is no such profile.
            Unavailable: Another registry answered.
        """
        return self._run(read_manifest_page(self._policy, profile, limit, registry))
