"""The extractors for OmniVoice, Higgs-Audio v2 and v3. They make the codes of Higgs Audio's tokenizer.

The codes are those that vLLM-Omni computes from the whole clip, which is resampled and otherwise unchanged.
OmniVoice's own package prepares a clip first. Settings switch these steps on.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.extractor_worker.device.libraries import library_versions
from services.extractor_worker.features.resample import KERNEL_FLOAT32
from services.extractor_worker.features.silence import SilenceRules, without_silence
from services.extractor_worker.models.higgs_audio_codec import (
    HUBERT_PARTS,
    PARTS,
    AcousticConfig,
    CodecConfig,
    CodecEncoder,
    SemanticConfig,
    codec_layout,
)
from services.extractor_worker.pipeline.torch_extractor import (
    Loading,
    TorchExtractor,
    untrained_inputs,
    weights_identity,
)
from services.extractor_worker.weights.loading import Checkpoint
from services.extractor_worker.weights.published import expect, read_config
from services.extractor_worker.weights.untrained import random_tensors
from services.shared.audio import ReferenceAudio
from services.shared.configuration.worker import OmniVoiceSettings
from speaker_registry.errors import AudioTooShort, WeightsInvalid

_CONFIG, _TENSORS = "audio_tokenizer/config.json", "audio_tokenizer/model.safetensors"

_OTHER_MODEL = (
    "not Higgs Audio's tokenizer; bosonai/higgs-audio-v2-tokenizer, for one, has a copy of the 3B language "
    "model under this name"
)
_SAMPLE_RATE = 24_000
_SAMPLES_PER_FRAME = 960
_CODEBOOKS = 8
_EXPECTED = {
    "sample_rate": _SAMPLE_RATE,
    "semantic_sample_rate": 16_000,
    "samples_per_frame": _SAMPLES_PER_FRAME,
    "downsample_factor": 320,
    "semantic_samples_per_frame": 320,
    "codebooks": _CODEBOOKS,
}
"""The values that a configuration must have. Most determine how the two branches' frames are aligned."""
_LOUDNESS = 0.1
"""The root mean square to which OmniVoice's own package amplifies quieter clips."""


@dataclass(frozen=True, slots=True)
class PreparedClip:
    """The prepared clip. samples: float32 [1, 1, N] at 24 kHz. whole: true if nothing was cut out of the
    clip.
    """

    samples: Tensor
    whole: bool


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """The codes of a clip: int64 [1, 8, T], still on the device.

    seconds: the length of the encoded audio, or None if that is the whole clip.
    """

    codes: Tensor
    seconds: float | None


class HiggsAudioExtractor(TorchExtractor[PreparedClip, EncodedClip]):
    """The encoder of Higgs Audio's tokenizer, on its device.

    Clips are encoded one at a time: padding changes the output of both encoders, and even clips of equal
    length are rounded differently in a batch.
    """

    code_version = 1
    always_float32 = True
    resampler = KERNEL_FLOAT32

    def __init__(self, loading: Loading, **fingerprint_inputs: Any) -> None:
        codec, tensors, weights = _weights(loading)
        super().__init__(
            loading,
            weights=weights,
            codec=asdict(codec) | {"books": _CODEBOOKS},
            libraries=library_versions("transformers"),
            **fingerprint_inputs,
        )
        self._min_samples = codec.min_samples
        self._codec = loading.shared_models.get(
            ("higgs-audio", codec, weights_identity(weights, _TENSORS), loading.device),
            lambda: CodecEncoder(codec, tensors, self.device),
        )

    def used_seconds(self, encoded: EncodedClip) -> float | None:
        return encoded.seconds

    def _prepare(self, clip: ReferenceAudio) -> PreparedClip:
        samples = self.resampled(clip, _SAMPLE_RATE, min_samples=self._min_samples)
        return PreparedClip(self.pinned(samples[None, None]), whole=True)

    def _encode(self, prepared: PreparedClip) -> EncodedClip:
        seconds = None if prepared.whole else prepared.samples.shape[-1] / _SAMPLE_RATE
        return EncodedClip(self._codec.encode(self.on_device(prepared.samples)), seconds)

    def _finish(self, encoded: EncodedClip) -> dict[str, Tensor]:
        """Return `ref_audio_tokens`: int64 [8, T], T = floor((N + 841) / 960), with values 0 … 1023."""
        return {"ref_audio_tokens": encoded.codes[0]}  # [8, T]


class HiggsAudioV3Extractor(HiggsAudioExtractor):
    """Higgs Audio's tokenizer for Higgs-Audio v3, whose servers keep the codes of a clip frame by frame.

    The codes are those before the delay pattern, which depends on the language model and not on the clip.
    """

    def _finish(self, encoded: EncodedClip) -> dict[str, Tensor]:
        """Return `ref_audio_tokens`: int64 [T, 8], T = floor((N + 841) / 960), with values 0 … 1023."""
        return {"ref_audio_tokens": encoded.codes[0].T}  # [T, 8]


class OmniVoiceExtractor(HiggsAudioExtractor):
    """Higgs Audio's tokenizer for OmniVoice, with the steps of OmniVoice's own package as options.

    One step of that package is not available: it cuts clips over 20 s without a transcript to 15 s.

    Args:
        settings: which steps to apply. By default they come from the environment.
    """

    def __init__(self, loading: Loading, settings: OmniVoiceSettings | None = None) -> None:
        self._settings = settings or OmniVoiceSettings()
        self._silence = SilenceRules()
        super().__init__(
            loading,
            loudness=_LOUDNESS if self._settings.loudness else None,
            silence=asdict(self._silence) if self._settings.trim else None,
            multiple_of=_SAMPLES_PER_FRAME if self._settings.whole_frames else 1,
        )

    def _prepare(self, clip: ReferenceAudio) -> PreparedClip:
        prepared = super()._prepare(clip)
        if not (self._settings.loudness or self._settings.trim or self._settings.whole_frames):
            return prepared
        samples = torch.from_numpy(self._as_omnivoice(prepared.samples[0, 0].numpy()))
        if len(samples) < self._min_samples:
            left = len(samples) / _SAMPLE_RATE
            raise AudioTooShort(f"of the clip's {clip.seconds:.3f} s only {left:.3f} s are more than silence")
        whole = len(samples) == prepared.samples.shape[-1]
        return PreparedClip(self.pinned(samples[None, None]), whole)

    def _as_omnivoice(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Raise the loudness, remove silence, and cut to whole frames, in this order."""
        if self._settings.loudness:
            samples = _loudness_raised(samples)
        if self._settings.trim:
            samples = without_silence(samples, _SAMPLE_RATE, self._silence)
        if self._settings.whole_frames:
            samples = samples[: len(samples) // _SAMPLES_PER_FRAME * _SAMPLES_PER_FRAME]
        return samples


def _loudness_raised(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    level = float(np.sqrt(np.mean(samples**2)))
    return samples * np.float32(_LOUDNESS) / np.float32(level) if 0 < level < _LOUDNESS else samples


def _weights(loading: Loading) -> tuple[CodecConfig, Mapping[str, Tensor], Mapping[str, Any]]:
    """Return the architecture, the encoder's tensors and the fingerprint inputs."""
    if loading.seed is not None:
        codec = CodecConfig()
        return codec, random_tensors(codec_layout(codec), loading.seed), untrained_inputs(loading.seed)
    checkpoint = loading.checkpoint()
    codec = _read_config(checkpoint)
    parts = (*PARTS, *(f"semantic_model.{part}" for part in HUBERT_PARTS))
    tensors = checkpoint.read_parts(_TENSORS, parts, codec_layout(codec), if_none=_OTHER_MODEL)
    return codec, tensors, checkpoint.fingerprint_inputs([_TENSORS])


def _read_config(checkpoint: Checkpoint) -> CodecConfig:
    published = checkpoint.read_json(_CONFIG)
    expect(_CONFIG, published, "model_type", "higgs_audio_v2_tokenizer", why=f": this is {_OTHER_MODEL}")
    parts = {name: _part(published, f"{name}_model_config") for name in ("acoustic", "semantic")}
    expect(f"{_CONFIG}: acoustic_model_config", parts["acoustic"], "model_type", "dac")
    expect(f"{_CONFIG}: semantic_model_config", parts["semantic"], "model_type", "hubert")
    config = replace(
        read_config(CodecConfig, published, _CONFIG),
        kilobits=_kilobits(published.get("target_bandwidths")),
        acoustic=read_config(AcousticConfig, parts["acoustic"], f"{_CONFIG}: acoustic_model_config"),
        semantic=read_config(SemanticConfig, parts["semantic"], f"{_CONFIG}: semantic_model_config"),
    )
    for name, value in _EXPECTED.items():
        if getattr(config, name) != value:
            raise WeightsInvalid(f"{_CONFIG}: {name} is {getattr(config, name)}, {value} is expected")
    return config


def _part(published: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = published.get(name)
    if not isinstance(part, Mapping):
        raise WeightsInvalid(f"{_CONFIG}: {name} is missing or not a JSON object")
    return part


def _kilobits(published: Any) -> float:
    """Return the last of `target_bandwidths`, which is the default of the tokenizer."""
    if not isinstance(published, list) or not published or not isinstance(published[-1], int | float):
        raise WeightsInvalid(f"{_CONFIG}: target_bandwidths is {published!r:.80}, numbers are expected")
    return float(published[-1])
