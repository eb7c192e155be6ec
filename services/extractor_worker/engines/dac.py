"""The extractor of codes of the Descript Audio Codec at 16, 24 and 44.1 kHz (Kumar et al., arXiv 2306.06546).

transformers computes the codes. This module knows the published files and the layout that they must have, and
pads clips with zeros to whole frames. Only the encoder is loaded. Clips are encoded one at a time: the
convolutions look ahead, so zeros after a clip change its last frames.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DacConfig, DacModel

from services.extractor_worker.device.libraries import library_versions
from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor, untrained_inputs
from services.extractor_worker.weights.loading import Checkpoint
from services.extractor_worker.weights.modules import Layout, layout_of
from services.extractor_worker.weights.pretrained import pretrained
from services.extractor_worker.weights.published import expect, read_config
from services.extractor_worker.weights.untrained import random_tensors
from services.shared.audio import ReferenceAudio
from speaker_registry.engine import Profile
from speaker_registry.errors import WeightsInvalid

_CONFIG, _TENSORS = "config.json", "model.safetensors"
_PARTS = ("encoder.", "quantizer.")
"""The parts of the published file that are read. transformers gives all tensors their published names."""
_RATIOS = {320: (2, 4, 5, 8), 512: (2, 4, 8, 8)}
"""Maps the samples per frame to the downsampling ratios of the published models with that hop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig:
    """The fields of a published config.json that the codes depend on, with transformers' names and defaults.

    `hop_length` is not read, because transformers' conversion script does not adapt it to the ratios.
    """

    encoder_hidden_size: int = 64
    """The number of channels at the full sample rate. Each stage doubles it."""
    downsampling_ratios: tuple[int, ...] = (2, 4, 8, 8)
    n_codebooks: int = 9
    codebook_size: int = 1024
    codebook_dim: int = 8
    sampling_rate: int = 16_000

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.downsampling_ratios)

    @property
    def hidden_size(self) -> int:
        """The width of the latents. Each stage doubles the width."""
        return self.encoder_hidden_size << len(self.downsampling_ratios)

    def for_transformers(self) -> DacConfig:
        # The decoder cannot be left out, so it is as narrow as halving its width at each stage allows.
        return DacConfig(**asdict(self), decoder_hidden_size=1 << len(self.downsampling_ratios))


class DacExtractor(TorchExtractor[Tensor, Tensor]):
    """The codec's encoder and codebooks on the device, in float32, as they are published and used.

    A prepared clip is float32 [1, 1, N], where N is a multiple of a frame. An encoded clip is
    int64 [1, K, T], on the device.
    """

    code_version = 1
    always_float32 = True

    def __init__(self, loading: Loading) -> None:
        config, tensors, fingerprint_inputs = _weights(loading)
        super().__init__(
            loading,
            weights=fingerprint_inputs,
            codec=asdict(config),
            zeros="after",
            libraries=library_versions("transformers"),
        )
        self._config = config
        # transformers' model has a decoder, which never runs.
        decoder = {key: torch.zeros(shape) for key, shape in _layout(config, "decoder.").items()}
        model = pretrained(DacModel, config.for_transformers(), {**tensors, **decoder}, dtype=torch.float32)
        self._model = model.to(self.device)

    def _prepare(self, clip: ReferenceAudio) -> Tensor:
        samples = self.resampled(clip, self._config.sampling_rate)
        zeros = -len(samples) % self._config.samples_per_frame
        return self.pinned(functional.pad(samples, (0, zeros))[None, None])

    def _encode(self, prepared: Tensor) -> Tensor:
        return self._model.encode(self.on_device(prepared)).audio_codes  # type: ignore[no-any-return]

    def _finish(self, encoded: Tensor) -> dict[str, Tensor]:
        """Return `codes`: int64 [K, T], T = ceil(N / samples_per_frame), with values 0 … 1023."""
        return {"codes": encoded[0]}


def _weights(loading: Loading) -> tuple[CodecConfig, Mapping[str, Tensor], Mapping[str, Any]]:
    """Return the architecture, the tensors of the encoder and the codebooks, and the fingerprint inputs."""
    config = _architecture(loading.profile)
    if loading.seed is not None:
        return config, random_tensors(_layout(config, *_PARTS), loading.seed), untrained_inputs(loading.seed)
    checkpoint = loading.checkpoint()
    config = _read_config(checkpoint, config)
    tensors = checkpoint.read_parts(_TENSORS, _PARTS, _layout(config, *_PARTS))
    return config, tensors, checkpoint.fingerprint_inputs([_TENSORS])


def _layout(config: CodecConfig, *parts: str) -> Layout:
    """Return the shapes of all tensors of these parts of the model."""
    layout = layout_of(partial(DacModel, config.for_transformers()))
    return {key: shape for key, shape in layout.items() if key.startswith(parts)}


def _architecture(profile: Profile) -> CodecConfig:
    """Return the architecture of the published model whose codes the profile describes."""
    codes = profile.tensors["codes"]
    books, highest = codes.shape[0], codes.maximum
    assert isinstance(books, int), "the profile says how many codebooks there are"
    assert highest, "the profile says how large they are"
    assert profile.frame_rate, "the profile says how many frames there are"
    return CodecConfig(
        downsampling_ratios=_RATIOS[round(profile.sample_rate / profile.frame_rate)],
        n_codebooks=books,
        codebook_size=int(highest) + 1,
        sampling_rate=profile.sample_rate,
    )


def _read_config(checkpoint: Checkpoint, expected: CodecConfig) -> CodecConfig:
    published = checkpoint.read_json(_CONFIG)
    expect(_CONFIG, published, "model_type", "dac")
    config = read_config(CodecConfig, published, _CONFIG)
    for field in ("sampling_rate", "n_codebooks", "codebook_size"):
        expect(_CONFIG, asdict(config), field, getattr(expected, field))
    if config.samples_per_frame != expected.samples_per_frame:
        raise WeightsInvalid(
            f"{_CONFIG}: downsampling_ratios make {config.samples_per_frame} samples a frame, "
            f"{expected.samples_per_frame} are expected"
        )
    return config
