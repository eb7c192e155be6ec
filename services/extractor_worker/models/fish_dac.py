"""The encoder half of Fish Speech's DAC: 44.1 kHz samples in, a semantic and nine residual codes 21.5 times a
second out. This module knows no files.

Written after fish-speech 0.1.0 (Apache-2.0). Every layer is causal: no frame depends on later samples, so
clips of several lengths, padded with zeros, may share a batch. Attribute names are the key names of the
published weights. `published_name` says which of those are under weight norm. The parts that only the decoder
needs (`post_module`, `upsample`) are left out.
"""

import functools
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from services.extractor_worker.models.causal import KERNEL, Block, WrappedCausalConv, downsampling_layers
from services.extractor_worker.models.nearest import nearest_entries
from services.extractor_worker.models.snake import Snake
from services.extractor_worker.models.weight_norm import TwoParts

_WIDENING = 4
"""The inner layer of a ConvNeXt block is this many times wider than its input."""
_CONVNEXT_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig:
    """The published architecture. It has no configuration file, so names are those of the reference code."""

    sample_rate: int = 44_100
    encoder_dim: int = 64
    """The number of channels at 44.1 kHz. Each stage doubles it."""
    encoder_rates: tuple[int, ...] = (2, 4, 8, 8)
    encoder_transformer_layers: tuple[int, ...] = (0, 0, 0, 4)
    """The number of transformer layers after each stage."""
    encoder_window: int = 512
    """The number of frames that a frame attends to, including itself. `pre_window` is counted in the same
    way.
    """
    encoder_head_dim: int = 64
    downsample_factor: tuple[int, ...] = (2, 2)
    pre_layers: int = 8
    """The number of layers of `pre_module`, the transformer before the quantizers."""
    pre_window: int = 128
    pre_heads: int = 16
    pre_head_dim: int = 64
    pre_inner: int = 3072
    semantic_codebook_size: int = 4096
    codebook_size: int = 1024
    n_codebooks: int = 9
    """The number of residual codebooks, without the semantic one."""
    codebook_dim: int = 8
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    max_frames: int = 4096
    """The length of the engines' tables of positions: 190 s."""
    straight_through: bool = True
    """True if codebook entries are rounded as by the straight-through estimator of the training code."""

    @property
    def width(self) -> int:
        """The width of the vectors that are quantised."""
        return int(self.encoder_dim * 2 ** len(self.encoder_rates))

    @property
    def samples_per_frame(self) -> int:
        """The samples in one frame of codes: 2048, four hops of 512 samples."""
        return math.prod(self.encoder_rates) * math.prod(self.downsample_factor)

    @property
    def codebooks(self) -> int:
        """The number of codes in a frame."""
        return 1 + self.n_codebooks


class CodecEncoder(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.quantizer = Quantizer(config)

    def forward(self, samples: Tensor) -> Tensor:
        """Encode clips of whole frames. Zeros that follow a clip reach none of its frames.

        Args:
            samples: float32 [B, 1, N] at `sample_rate`. N is a multiple of `samples_per_frame`, and at most
                `max_frames` times that.

        Returns:
            int64 [B, codebooks, N / samples_per_frame], the semantic codebook first.
        """
        return self.quantizer(self.encoder(samples))  # type: ignore[no-any-return]


class Encoder(Block):
    """Strided stages: [B, 1, N] -> [B, width, N / 512].

    Transformer layers follow the convolutions of a stage if the configuration has any there.
    """

    def __init__(self, config: CodecConfig) -> None:
        width = config.encoder_dim
        stages: list[nn.Module] = [WrappedCausalConv(1, width, KERNEL)]
        for rate, layers in zip(config.encoder_rates, config.encoder_transformer_layers, strict=True):
            strided = downsampling_layers(width, rate, WrappedCausalConv)
            width *= 2
            stages.append(Block(*strided, _encoder_transformer(width, layers, config)))
        super().__init__(*stages, Snake(width), WrappedCausalConv(width, width, 3))


class WindowedTransformer(nn.Module):
    """A transformer whose frames attend to the last `window` frames, including the current one."""

    def __init__(
        self,
        width: int,
        config: CodecConfig,
        *,
        layers: int,
        heads: int,
        head_dim: int,
        inner: int,
        window: int,
        positions: int,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(width, heads, head_dim, inner, config.norm_eps) for _ in range(layers)
        )
        self.norm = RMSNorm(width, config.norm_eps)
        self.window = window
        self._rope_table = partial(_rope_table, positions, head_dim, config.rope_base)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform frames: [B, C, T] -> [B, C, T]."""
        hidden = hidden.transpose(1, 2)  # [B, T, C]
        rotations = self._rope_table(hidden.device)[: hidden.shape[1]]
        visible = self._visible(hidden)
        for layer in self.layers:
            hidden = layer(hidden, rotations, visible)
        return self.norm(hidden).transpose(1, 2)  # type: ignore[no-any-return]

    def _visible(self, hidden: Tensor) -> Tensor:
        """Return bool [T, T]: which frames (columns) a frame (row) attends to."""
        position = torch.arange(hidden.shape[1], device=hidden.device)
        distance = position[:, None] - position
        return (distance >= 0) & (distance < self.window)


class TransformerLayer(nn.Module):
    def __init__(self, width: int, heads: int, head_dim: int, inner: int, norm_eps: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, head_dim)
        self.feed_forward = FeedForward(width, inner)
        self.attention_norm = RMSNorm(width, norm_eps)
        self.ffn_norm = RMSNorm(width, norm_eps)
        self.attention_layer_scale = LayerScale(width)
        self.ffn_layer_scale = LayerScale(width)

    def forward(self, hidden: Tensor, rotations: Tensor, visible: Tensor) -> Tensor:
        attended = self.attention(self.attention_norm(hidden), rotations, visible)
        hidden = hidden + self.attention_layer_scale(attended)
        widened = self.feed_forward(self.ffn_norm(hidden))
        return hidden + self.ffn_layer_scale(widened)  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.wqkv = nn.Linear(width, 3 * heads * head_dim, bias=False)
        self.wo = nn.Linear(heads * head_dim, width, bias=False)

    def forward(self, hidden: Tensor, rotations: Tensor, visible: Tensor) -> Tensor:
        of_heads = self.wqkv(hidden).reshape(*hidden.shape[:2], 3, self.heads, -1)  # [B, T, 3, H, D]
        queries, keys, values = of_heads.unbind(2)  # [B, T, H, D] each
        queries, keys = _rotated(queries, rotations), _rotated(keys, rotations)
        attended = functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=visible
        )  # [B, H, T, D]
        return self.wo(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return] # [B, T, C]


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(hidden)) * self.w3(hidden))  # type: ignore[no-any-return]


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        power = (hidden * hidden).mean(dim=-1, keepdim=True)
        return hidden * torch.rsqrt(power + self.eps) * self.weight


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * self.gamma


class Quantizer(nn.Module):
    """Downsamples to a quarter of the frames and quantises them.

    The semantic codebook comes first. Each further codebook codes what the ones before it left over.
    """

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        width = config.width
        self.downsample = nn.Sequential(*[Downsample(width, rate) for rate in config.downsample_factor])
        self.pre_module = WindowedTransformer(
            width,
            config,
            layers=config.pre_layers,
            heads=config.pre_heads,
            head_dim=config.pre_head_dim,
            inner=config.pre_inner,
            window=config.pre_window,
            positions=config.max_frames,
        )
        self.semantic_quantizer = Codebooks(1, config.semantic_codebook_size, config)
        self.quantizer = Codebooks(config.n_codebooks, config.codebook_size, config)

    def forward(self, hidden: Tensor) -> Tensor:
        """Quantise frames: [B, C, T] -> int64 [B, codebooks, T / 4]."""
        residual = self.pre_module(self.downsample(hidden))  # [B, C, T / 4]
        codes = []
        books = [*self.semantic_quantizer.quantizers, *self.quantizer.quantizers]
        for book in books:
            indices, entry = book.nearest(residual)
            codes.append(indices)
            if book is not books[-1]:
                residual = residual - book.out_proj(entry)
        return torch.stack(codes, dim=1)


class Downsample(nn.Sequential):
    def __init__(self, width: int, rate: int) -> None:
        super().__init__(WrappedCausalConv(width, width, rate, stride=rate), ConvNeXt(width))


class ConvNeXt(nn.Module):
    """A ConvNeXt block (arXiv 2201.03545), causal and in one dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = WrappedCausalConv(width, width, KERNEL, groups=width)
        self.norm = nn.LayerNorm(width, eps=_CONVNEXT_NORM_EPS)
        self.pwconv1 = nn.Linear(width, _WIDENING * width)
        self.pwconv2 = nn.Linear(_WIDENING * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the block: [B, C, T] -> [B, C, T]."""
        inner = self.norm(self.dwconv(hidden).transpose(1, 2))  # [B, T, C]
        inner = self.gamma * self.pwconv2(functional.gelu(self.pwconv1(inner)))  # [B, T, C]
        return hidden + inner.transpose(1, 2)  # type: ignore[no-any-return]


class Codebooks(nn.Module):
    def __init__(self, count: int, size: int, config: CodecConfig) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(Codebook(size, config) for _ in range(count))


class Codebook(nn.Module):
    """A low-dimensional codebook that compares directions only (ViT-VQGAN, arXiv 2110.04627)."""

    def __init__(self, size: int, config: CodecConfig) -> None:
        super().__init__()
        self.straight_through = config.straight_through
        self.in_proj = nn.Conv1d(config.width, config.codebook_dim, 1)
        self.out_proj = nn.Conv1d(config.codebook_dim, config.width, 1)
        self.codebook = nn.Embedding(size, config.codebook_dim)

    def nearest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of the nearest entries, int64 [B, T], and the entries, [B, D, T]."""
        latents = self.in_proj(hidden)  # [B, D, T]
        indices = self._indices(latents.transpose(1, 2).flatten(0, 1)).reshape(len(latents), -1)
        entries = functional.embedding(indices, self.codebook.weight).transpose(1, 2)  # [B, D, T]
        if self.straight_through:
            entries = latents + (entries - latents)  # not quite the entries, in float32
        return indices, entries

    def _indices(self, latents: Tensor) -> Tensor:
        """Return the index of the entry with the nearest direction for each vector: [M, D] -> int64 [M]."""
        entries = functional.normalize(self.codebook.weight)
        return nearest_entries(functional.normalize(latents), entries)


def _encoder_transformer(width: int, layers: int, config: CodecConfig) -> nn.Module:
    if not layers:
        return nn.Identity()
    return WindowedTransformer(
        width,
        config,
        layers=layers,
        heads=width // config.encoder_head_dim,
        head_dim=config.encoder_head_dim,
        inner=3 * width,
        window=config.encoder_window,
        positions=config.max_frames * math.prod(config.downsample_factor),
    )


@functools.lru_cache(maxsize=8)
def _rope_table(positions: int, head_dim: int, base: float, device: torch.device) -> Tensor:
    """Return each position's cosine and sine, rounded to bfloat16: [positions, head_dim / 2, 2].

    The model was trained with this rounding. The table is made on the CPU, so that it is the same on every
    device.
    """
    steps = torch.arange(0, head_dim, 2, device="cpu").float() / head_dim
    angles = torch.outer(torch.arange(positions, device="cpu"), 1.0 / base**steps)
    turns = torch.view_as_real(torch.polar(torch.ones_like(angles), angles))
    return turns.to(torch.bfloat16).float().to(device)


def _rotated(heads: Tensor, rotations: Tensor) -> Tensor:
    """Rotate neighbouring pairs of [B, T, H, D] by `rotations`, [T, D / 2, 2]."""
    real, imaginary = heads.reshape(*heads.shape[:-1], -1, 2).unbind(-1)  # [B, T, H, D / 2] each
    cosine, sine = rotations[:, None].unbind(-1)  # [T, 1, D / 2] each
    turned = torch.stack([real * cosine - imaginary * sine, imaginary * cosine + real * sine], dim=-1)
    return turned.flatten(-2)  # [B, T, H, D]


def published_name(key: str) -> str | TwoParts:
    """Map a key to its published name, or to the two parts of a weight under weight norm.

    The encoder's convolutions use torch's parametrizations, the quantizers' projections its older hooks.
    """
    if key.startswith("encoder.") and key.endswith(".conv.weight"):
        return TwoParts.of_parametrizations(key)
    return TwoParts.of_hooks(key) if key.endswith(("in_proj.weight", "out_proj.weight")) else key
