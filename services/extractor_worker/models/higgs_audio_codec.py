"""The encoder half of Higgs Audio's tokenizer: 24 kHz samples in, codes of eight codebooks at 25 Hz out.

A DAC encoder captures the acoustics, HuBERT (arXiv 2106.07447) captures the speech, and a residual quantizer
codes both together. transformers computes the codes, and its tensors have the published names. This module
leaves out the decoder. This module knows no files.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import HiggsAudioV2TokenizerConfig

from services.extractor_worker.features.torchaudio_shim import import_with_torchaudio
from services.extractor_worker.weights.modules import Layout, layout_of
from services.extractor_worker.weights.pretrained import pretrained

PARTS = ("acoustic_encoder.", "encoder_semantic.", "fc.", "quantizer.")
HUBERT_PARTS = ("feature_extractor.", "feature_projection.", "encoder.")
"""The parts of `semantic_model.`. HuBERT's checkpoints may also have a `masked_spec_embed`, which only
training needs.
"""

_MODULE = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
_PADDING = 160
"""The number of 16 kHz samples that transformers adds on either side of HuBERT's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcousticConfig:
    """The DAC encoder: `acoustic_model_config` of a published config.json, under the names used there."""

    encoder_hidden_size: int = 64
    hidden_size: int = 256
    downsampling_ratios: tuple[int, ...] = (8, 5, 4, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticConfig:
    """HuBERT in its published base size: `semantic_model_config` of a published config.json."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    conv_dim: tuple[int, ...] = (512, 512, 512, 512, 512, 512, 512)
    conv_kernel: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    conv_stride: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    conv_bias: bool = False
    feat_extract_norm: str = "group"
    feat_extract_activation: str = "gelu"
    feat_proj_layer_norm: bool = True
    num_conv_pos_embeddings: int = 128
    num_conv_pos_embedding_groups: int = 16
    conv_pos_batch_norm: bool = False
    do_stable_layer_norm: bool = False

    def __post_init__(self) -> None:
        if not len(self.conv_dim) == len(self.conv_kernel) == len(self.conv_stride):
            raise ValueError("conv_dim, conv_kernel and conv_stride differ in length")
        as_base = {
            "conv_bias": False,
            "feat_extract_norm": "group",
            "feat_proj_layer_norm": True,
            "conv_pos_batch_norm": False,
            "do_stable_layer_norm": False,
        }
        for name, value in as_base.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} is {getattr(self, name)!r}, {value!r} is expected")

    @property
    def min_samples(self) -> int:
        """The fewest samples that the convolutions need for one frame."""
        needed = 1
        for kernel, stride in zip(reversed(self.conv_kernel), reversed(self.conv_stride), strict=True):
            needed = (needed - 1) * stride + kernel
        return needed


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig:
    """The fields of a published config.json that the codes depend on, under the names used there.

    The defaults are those of the published tokenizer.
    """

    sample_rate: int = 24_000
    semantic_sample_rate: int = 16_000
    downsample_factor: int = 320
    kernel_size: int = 3
    unit_kernel_size: int = 3
    channel_ratios: tuple[int, ...] = (1, 1)
    strides: tuple[int, ...] = (1, 1)
    block_dilations: tuple[int, ...] = (1, 1)
    codebook_size: int = 1024
    codebook_dim: int = 64
    kilobits: float = 2.0
    """The bit rate in kbit/s: the last of `target_bandwidths`. It determines the number of codebooks."""
    acoustic: AcousticConfig = AcousticConfig()
    semantic: SemanticConfig = SemanticConfig()

    def __post_init__(self) -> None:
        if len(self.channel_ratios) != len(self.strides):
            raise ValueError("channel_ratios and strides differ in length")
        if set(self.strides) != {1}:
            raise ValueError(f"strides is {self.strides!r}, ones are expected")

    @property
    def samples_per_frame(self) -> int:
        """The samples in one frame of codes: 960, which is 40 ms."""
        return math.prod(self.acoustic.downsampling_ratios)

    @property
    def semantic_samples_per_frame(self) -> int:
        """The 16 kHz samples in one frame of HuBERT: 320, which is 20 ms. Every second frame is used."""
        return math.prod(self.semantic.conv_stride)

    @property
    def codebooks(self) -> int:
        bits = math.ceil(math.log2(self.codebook_size))
        frames = math.ceil(self.sample_rate / self.samples_per_frame)
        return int(1000 * self.kilobits // (frames * bits))

    @property
    def width(self) -> int:
        """The width of the vectors that are quantised."""
        return self.acoustic.hidden_size + self.semantic.hidden_size

    @property
    def min_samples(self) -> int:
        """The fewest samples of a clip at `sample_rate`: 119, which give one frame."""
        resampled = self.semantic.min_samples - 2 * _PADDING  # at 16 kHz; resampling rounds up
        return (resampled - 1) * self.sample_rate // self.semantic_sample_rate + 1

    def for_transformers(self) -> HiggsAudioV2TokenizerConfig:
        fields = {name: _listed(value) for name, value in asdict(self).items()}
        acoustic, semantic = fields.pop("acoustic"), fields.pop("semantic")
        return HiggsAudioV2TokenizerConfig(
            **fields,
            target_bandwidths=[fields.pop("kilobits")],
            acoustic_model_config={"model_type": "dac", **acoustic},
            # 0.0 leaves out the embedding of masked frames, which only training needs.
            semantic_model_config={"model_type": "hubert", "mask_time_prob": 0.0, **semantic},
        )


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _listed(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def codec_layout(config: CodecConfig) -> Layout:
    """Return the shapes of all tensors of the published file that encoding needs."""
    return layout_of(partial(_encoder_class(), config.for_transformers()))


class CodecEncoder:
    """A tokenizer without its decoder, on one device, in float32. Only one thread at a time may use it."""

    def __init__(self, config: CodecConfig, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        kind, options = _encoder_class(), {"dtype": torch.float32}
        self.model = pretrained(kind, config.for_transformers(), tensors, **options).to(device)

    def encode(self, samples: Tensor) -> Tensor:
        """Encode clips of equal length.

        Args:
            samples: float32 [B, 1, N] at 24 kHz, on the device.

        Returns:
            int64 [B, codebooks, floor((N + samples_per_frame - min_samples) / samples_per_frame)].
        """
        return self.model.encode(samples, return_dict=False)  # type: ignore[no-any-return]


@cache
def _encoder_class() -> Any:
    model: Any = import_with_torchaudio(_MODULE).HiggsAudioV2TokenizerModel

    class Encoder(model):  # type: ignore[misc]  # a class that is only known once it is imported
        """The tokenizer without the decoder, which is a fifth of the weights."""

        def __init__(self, config: HiggsAudioV2TokenizerConfig) -> None:
            super().__init__(config)
            self.acoustic_decoder, self.decoder_semantic = nn.Identity(), nn.Identity()
            self.fc1, self.fc2 = nn.Identity(), nn.Identity()

    return Encoder
