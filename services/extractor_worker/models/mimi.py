"""The encoder half of the Mimi codec as Qwen3-TTS publishes it: 24 kHz samples in, codes at 12.5 Hz out.

transformers computes the codes. This module adds the list of the published tensors, so that a wrong file is
refused with the names that differ, and passes on only the fields that describe the architecture. It never
addresses sub-modules of `MimiModel`: their paths changed between versions, the published key names did not.
This module knows no files.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, MimiConfig, MimiModel

from services.extractor_worker.weights.modules import Layout
from services.extractor_worker.weights.pretrained import pretrained

_DOWNSAMPLING = 2
"""The stride of the layer after the transformer, from 25 Hz to 12.5 Hz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig:
    """`encoder_config` of a published speech_tokenizer/config.json, under the names used there.

    It has only the fields that the encoder's result depends on. The defaults are those of the published 12 Hz
    tokenizer.
    """

    sampling_rate: int = 24_000
    audio_channels: int = 1
    num_filters: int = 64
    num_residual_layers: int = 1
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    """The ratios in the decoder's order. The encoder downsamples in the reverse order."""
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    dilation_growth_rate: int = 2
    compress: int = 2
    use_causal_conv: bool = True
    pad_mode: str = "constant"
    hidden_size: int = 512
    num_hidden_layers: int = 8
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int = 64
    hidden_act: str = "gelu"
    max_position_embeddings: int = 8000
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    sliding_window: int = 250
    """The number of 25 Hz frames that each frame attends to. TTS servers and transformers 5 apply this
    window, transformers 4 did not.
    """
    codebook_size: int = 2048
    codebook_dim: int = 256
    vector_quantization_hidden_dimension: int = 256
    num_quantizers: int = 32
    num_semantic_quantizers: int = 1

    @property
    def samples_per_frame(self) -> int:
        """The samples in one frame of codes: 1920, which is 80 ms."""
        return math.prod(self.upsampling_ratios) * _DOWNSAMPLING

    def for_transformers(self) -> MimiConfig:
        fields = asdict(self)
        rope = {"rope_type": "default", "rope_theta": fields.pop("rope_theta")}
        # The decoder is left out. `frame_rate` determines whether the last downsampling exists.
        fields |= {"upsampling_ratios": list(self.upsampling_ratios), "rope_parameters": rope}
        fields |= {"frame_rate": self.sampling_rate / self.samples_per_frame, "decoder_config": None}
        return MimiConfig(**fields)


def codec_layout(config: CodecConfig) -> Layout:
    """Return the shapes of all tensors of the published encoder, without the file's prefix."""
    hidden = config.hidden_size
    layout = {**_seanet_layout(config), **_transformer_layout(config), **_quantizer_layout(config)}
    return layout | {"downsample.conv.weight": (hidden, hidden, 2 * _DOWNSAMPLING)}


def _seanet_layout(config: CodecConfig) -> Layout:
    """Return the convolutions by their index in the published list, in which activations count as well."""
    width, index = config.num_filters, 1
    convolutions = {"0": (width, config.audio_channels, config.kernel_size)}
    for ratio in reversed(config.upsampling_ratios):
        for _ in range(config.num_residual_layers):
            narrow = width // config.compress
            convolutions[f"{index}.block.1"] = (narrow, width, config.residual_kernel_size)
            convolutions[f"{index}.block.3"] = (width, narrow, 1)
            index += 1
        convolutions[f"{index + 1}"] = (2 * width, width, 2 * ratio)
        width, index = 2 * width, index + 2
    convolutions[f"{index + 1}"] = (config.hidden_size, width, config.last_kernel_size)
    weights = {f"encoder.layers.{name}.conv.weight": shape for name, shape in convolutions.items()}
    biases = {f"encoder.layers.{name}.conv.bias": shape[:1] for name, shape in convolutions.items()}
    return weights | biases


def _transformer_layout(config: CodecConfig) -> Layout:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    layer: Layout = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.fc1.weight": (inner, hidden),
        "mlp.fc2.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "input_layernorm.bias": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "post_attention_layernorm.bias": (hidden,),
        "self_attn_layer_scale.scale": (hidden,),
        "mlp_layer_scale.scale": (hidden,),
    }
    layers = range(config.num_hidden_layers)
    return {f"encoder_transformer.layers.{n}.{key}": shape for n in layers for key, shape in layer.items()}


def _quantizer_layout(config: CodecConfig) -> Layout:
    hidden, inner = config.hidden_size, config.vector_quantization_hidden_dimension
    codebook: Layout = {
        "initialized": (1,),
        "cluster_usage": (config.codebook_size,),
        "embed_sum": (config.codebook_size, config.codebook_dim),
    }
    acoustic = config.num_quantizers - config.num_semantic_quantizers
    layout: dict[str, tuple[int, ...]] = {}
    for kind, books in (("semantic", config.num_semantic_quantizers), ("acoustic", acoustic)):
        name = f"quantizer.{kind}_residual_vector_quantizer"
        layout |= {
            f"{name}.input_proj.weight": (inner, hidden, 1),
            f"{name}.output_proj.weight": (hidden, inner, 1),
        }
        for book in range(books):
            layout |= {f"{name}.layers.{book}.codebook.{key}": shape for key, shape in codebook.items()}
    return layout


class CodecEncoder:
    """A loaded codec encoder on one device. Only one thread at a time may use it."""

    def __init__(
        self,
        config: CodecConfig,
        tensors: Mapping[str, Tensor],
        *,
        codebooks: int,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        self.codebooks = codebooks
        # Servers cast the whole model, which also rounds the frequencies of rotary positions. Loading in a
        # dtype would leave those in float32, and in bfloat16 one code in ten would differ.
        self.model = _moved_to(device, _load(config, tensors, dtype).to(dtype))

    def encode(self, samples: Tensor) -> Tensor:
        """Encode clips of equal length.

        Args:
            samples: [B, 1, N] at 24 kHz, on the device and in the dtype of the weights.

        Returns:
            int64 [B, codebooks, ceil(N / samples_per_frame)].
        """
        # Further codebooks are not computed, because each codebook depends only on those before it.
        # The cache is empty. Without one, transformers checks whether the positions belong to several packed
        # sequences, which waits for the GPU.
        encoded = self.model.encode(
            samples, num_quantizers=self.codebooks, encoder_past_key_values=DynamicCache()
        )
        return encoded.audio_codes  # type: ignore[no-any-return]


def _moved_to(device: str, model: Any) -> Any:
    """Move the model to its device, except the sizes that padding is computed from, which stay on the host.

    Reading them from a GPU would make each convolution wait for all work before it.
    """
    sizes = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.dim() == 0 and not buffer.is_floating_point()
    ]
    model.to(device)
    for module, name, buffer in sizes:
        setattr(module, name, buffer)
    return model


def _load(config: CodecConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
    # Flash attention, which transformers could choose where it is installed, rounds differently.
    options = {"dtype": dtype, "attn_implementation": "sdpa"}
    return pretrained(MimiModel, config.for_transformers(), tensors, **options)
