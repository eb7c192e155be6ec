"""Clips of versions: the uploaded file, its decoded samples, and pictures of it."""

from speaker_registry.client.executor import PlanExecutor
from speaker_registry.fetching import Clip, ClipPicture, PictureKind
from speaker_registry.paths import parse_target
from speaker_registry.reference_audio import ReferenceAudio


class Clips(PlanExecutor):
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
