"""The files of vLLM-Omni's `SPEAKER_SAMPLES_DIR`: a clip or a speaker embedding per voice, with its facts in
the header.

vLLM-Omni reads all files of the folder, in the order of their names, and the last one of a voice counts. It
caches each voice under its name and its `created_at`, which is that of the registry here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import safetensors.numpy

from speaker_registry.client import RegistryClient
from speaker_registry.errors import CacheUnsupported, InvalidArtifact
from speaker_registry.schemas import Voice, VoiceVersion
from speaker_registry.syncing.folder import FileName
from speaker_registry.syncing.wanted import Wanted

_TAKE_EMBEDDINGS = frozenset({"ming_tts", "qwen3_tts"})
"""The model types for which vLLM-Omni 0.30 accepts a speaker embedding instead of a clip."""


class SpeakerSamples:
    """The format `speaker-samples` for one profile."""

    index_name = None
    model_types = _TAKE_EMBEDDINGS | {
        "audio8_tts",
        "cosyvoice3",
        "fish_speech",
        "glm_tts",
        "higgs_audio_v2",
        "higgs_audio_v3",
        "indextts2",
        "moss_tts",
        "omnivoice",
        "voxcpm2",
    }
    """The model types for which vLLM-Omni 0.30 takes uploaded voices."""

    def __init__(self, client: RegistryClient, profile: str, model_type: str) -> None:
        self._client, self._profile, self._model_type = client, profile, model_type

    def wanted(self, voices: Sequence[Voice]) -> Iterator[Wanted]:
        """Yield the files that belong in the folder: the default version of each voice."""
        for voice in voices:
            yield Wanted(voice=voice, version=voice.version, created_at=voice.created_at)

    def fetch(self, wanted: Wanted) -> bytes:
        """Return the bytes of a file. Raises as `sample`."""
        return self.sample(wanted.reference)

    def sample(self, reference: str, **facts: str) -> bytes:
        """Return the bytes of the file of a version.

        Args:
            reference: The version, such as `alice@3`.
            facts: Entries of the header, besides or instead of those of the version.

        Raises:
            CacheUnsupported: The version has no clip, and servers of this model take no embeddings.
            SpeakerRegistryError: As `RegistryClient.samples` and `RegistryClient.download`.
        """
        version = self._client.version(reference)
        if version.source == "audio":
            audio = self._client.samples(reference)
            return _file("audio", audio.samples, version, {"sample_rate": str(audio.sample_rate), **facts})
        embedding = self.embedding(reference)
        dimension = {"embedding_dim": str(embedding.size)}
        return _file("speaker_embedding", embedding, version, {**dimension, **facts})

    def index(self, _: Sequence[FileName], __: Callable[[FileName], bytes]) -> None:
        """Return None, because vLLM-Omni reads all files of this folder."""

    def without_removed(self, _: bytes, __: Callable[[str], bool]) -> None:
        """Return None, because there is no index that could name removed files."""

    def embedding(self, reference: str) -> np.ndarray:
        """Return the speaker embedding of a version for the profile, float32 [D]. Raises as `sample`."""
        if self._model_type not in _TAKE_EMBEDDINGS:
            raise CacheUnsupported(
                "the version has a speaker embedding and no clip, and vLLM-Omni takes embeddings only for "
                f"{' and '.join(sorted(_TAKE_EMBEDDINGS))}"
            )
        embedding = self._client.download(reference, self._profile).artifact.tensors.get("speaker_embedding")
        if embedding is None:
            raise InvalidArtifact(f"the artifact for {self._profile} has no tensor 'speaker_embedding'")
        return embedding.reshape(-1)


def _file(name: str, tensor: np.ndarray, version: VoiceVersion, facts: Mapping[str, str]) -> bytes:
    """Encode a file with the header that vLLM-Omni itself writes for an upload. Its values are all texts."""
    audio = version.audio
    header = {
        "name": version.voice,
        "voice_name_lower": version.voice.lower(),  # as vLLM-Omni looks it up
        "consent": version.consent,
        "created_at": str(version.created_at),
        "mime_type": audio.mime_type if audio else "application/x-safetensors",
        "file_size": str(audio.size if audio else tensor.nbytes),
        "embedding_source": "audio" if audio else "direct",
        "ref_text": version.ref_text,
        "speaker_description": version.description,
        **facts,
    }
    metadata = {key: value for key, value in header.items() if value is not None}
    return bytes(safetensors.numpy.save({name: np.ascontiguousarray(tensor)}, metadata=metadata))
