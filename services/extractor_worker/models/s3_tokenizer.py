"""The S3 speech tokenizer v3 of CosyVoice3: log-mel frames in, 25 codes a second out. This module knows no
audio.

The encoder resembles Whisper's. Its attention uses rotary positions (RoPE) and a memory of neighbouring
positions (FSMN, a depthwise convolution over the values), and it ends in finite scalar quantisation
(arXiv 2309.15505). The model is published only as an ONNX graph, from which `read_s3_tokenizer` takes the
weights. It encodes one window of at most 30 s.

Clips are encoded one at a time. A mask could hide all padding, but larger matrices are summed in another
order, which moves values by 1e-5 and flips a code in one of a hundred 10 s clips.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from services.extractor_worker.models.convolution import Conv1d
from services.extractor_worker.weights.loading import Checkpoint
from services.extractor_worker.weights.modules import Layout, filled, layout_of

_HEAD = 64
_ROTATION_BASE = 10_000.0
_TANH_SCALE = 0.9990000128746033
"""Keeps a saturated tanh from rounding to a fourth level. It is the published graph's 0.999 in float32."""
_LEVELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """The sizes of the published model, whose file has no configuration."""

    mel_bands: int = 128
    width: int = 1280
    layers: int = 12
    memory: int = 31
    """The width of the FSMN memory in positions, centred on each position."""
    digits: int = 8
    """The number of digits in a code. Each has three levels, which gives 6561 codes."""
    max_frames: int = 3000
    """Maximum number of mel frames: 30 s. Longer audio would have to be cut into windows."""

    @property
    def max_codes(self) -> int:
        return codes_of(self.max_frames)


def codes_of(frames: int) -> int:
    """Return the number of codes for this many mel frames. Both strided convolutions round up."""
    return -(-frames // 4)


class S3Tokenizer(nn.Module):
    """The tokenizer. Attribute names are our own, and `read_s3_tokenizer` maps the graph's names to them."""

    def __init__(self, config: S3Config) -> None:
        super().__init__()
        self.max_codes = config.max_codes
        self.conv1 = nn.Conv1d(config.mel_bands, config.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.project_in = nn.Linear(config.width, config.digits)

    def forward(self, mel: Tensor) -> Tensor:
        """Encode clips of equal length.

        Args:
            mel: float32 [B, mel_bands, M]; M <= `config.max_frames`.

        Returns:
            int64 [B, codes_of(M)], 0 … 6560.
        """
        hidden = functional.gelu(self.conv2(functional.gelu(self.conv1(mel)))).transpose(1, 2)  # [B, T, D]
        cosine, sine = _rotation(self.max_codes, mel.device)
        rotation = cosine[: hidden.shape[1]], sine[: hidden.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, rotation)
        return _quantised(self.project_in(hidden))  # [B, T]


@functools.lru_cache(maxsize=4)
def _rotation(positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, [positions, 1, 64] each.

    They are computed on the CPU, so that they are the same on every device.
    """
    steps = torch.arange(0, _HEAD, 2).float() / _HEAD
    angles = torch.outer(torch.arange(positions).float(), 1.0 / _ROTATION_BASE**steps)  # [T, 32]
    angles = torch.cat([angles, angles], dim=1)[:, None]  # [T, 1, 64]
    turns = torch.polar(torch.ones_like(angles), angles).to(device)
    return turns.real.contiguous(), turns.imag.contiguous()


def _quantised(projected: Tensor) -> Tensor:
    """Quantise each digit to three levels: [B, T, digits] -> int64 [B, T]. The first digit is the lowest."""
    digits = (projected.tanh() * _TANH_SCALE).round().long() + 1
    powers = _LEVELS ** torch.arange(projected.shape[2], device=projected.device)
    return (digits * powers).sum(dim=2)


class Block(nn.Module):
    def __init__(self, config: S3Config) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(config.width)
        self.attn = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        hidden = hidden + self.attn(self.attn_norm(hidden), rotation)
        return hidden + self.mlp(self.mlp_norm(hidden))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention in the reference's order of operations.

    A fused kernel would sum in another order, and codes must equal the reference's.
    """

    def __init__(self, config: S3Config) -> None:
        super().__init__()
        width = config.width
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)
        self.memory = Conv1d(
            width, width, config.memory, padding=config.memory // 2, groups=width, bias=False
        )

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Attend to all positions: [B, T, D] -> [B, T, D]."""
        value = self.value(hidden)
        query, key, heads = (
            part.unflatten(2, (-1, _HEAD)) for part in (self.query(hidden), self.key(hidden), value)
        )  # [B, T, H, 64] each
        scale = _HEAD**-0.25
        query = _rotated(query, rotation).permute(0, 2, 1, 3) * scale  # [B, H, T, 64]
        key = _rotated(key, rotation).permute(0, 2, 3, 1) * scale  # [B, H, 64, T]
        weights = (query @ key).softmax(dim=3)  # [B, H, T, T]
        mixed = (weights @ heads.permute(0, 2, 1, 3)).permute(0, 2, 1, 3).flatten(2)  # [B, T, D]
        return self.out(mixed) + self._memory_block(value)  # type: ignore[no-any-return]

    def _memory_block(self, value: Tensor) -> Tensor:
        """Sum the neighbourhood of each position, weighted, and add the position: [B, T, D] -> [B, T, D]."""
        return self.memory(value.transpose(1, 2)).transpose(1, 2) + value  # type: ignore[no-any-return]


def _rotated(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair of coordinates i and i + 32 of [B, T, H, 64] by its position's angle."""
    first, second = heads.chunk(2, dim=3)
    return heads * rotation[0] + torch.cat([-second, first], dim=3) * rotation[1]


def s3_layout(config: S3Config) -> Layout:
    return layout_of(partial(S3Tokenizer, config))


def load_s3_tokenizer(config: S3Config, tensors: Mapping[str, Tensor], device: str) -> S3Tokenizer:
    """Build the tokenizer on its device, in float32."""
    return filled(partial(S3Tokenizer, config), tensors).to(device, torch.float32)


def read_s3_tokenizer(checkpoint: Checkpoint, name: str, config: S3Config) -> dict[str, Tensor]:
    """Read the tensors of the published graph and convert them to those of `S3Tokenizer`.

    Raises:
        WeightsInvalid: the file is damaged, or its tensors are not exactly those of `config`.
    """
    layout = s3_layout(config)
    stored = {key: shape[::-1] if _is_matrix(key, shape) else shape for key, shape in layout.items()}
    tensors = checkpoint.read_tensors(name, "", stored, renamed=_renamed)
    return {
        key: tensor.T.contiguous() if _is_matrix(key, layout[key]) else tensor
        for key, tensor in tensors.items()
    }


def _is_matrix(key: str, shape: Sequence[int]) -> bool:
    """Return whether the graph multiplies by this weight from the right, and so stores it transposed."""
    return key.endswith(".weight") and len(shape) == 2


_NAMES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"/(conv[12])/Conv:1:.*", r"\1.weight"),
        (r"/(conv[12])/Conv:2:.*", r"\1.bias"),
        (r"/(blocks\.\d+)/(attn|mlp)_ln/Mul:.*", r"\1.\2_norm.weight"),
        (r"/(blocks\.\d+)/(attn|mlp)_ln/Add(?:_1)?:.*", r"\1.\2_norm.bias"),
        (r"/(blocks\.\d+)/attn/(query|key|value|out)/MatMul:.*", r"\1.attn.\2.weight"),
        (r"/(blocks\.\d+)/attn/(query|key|value|out)/Add:.*", r"\1.attn.\2.bias"),
        (r".*:(blocks\.\d+)\.attn\.fsmn_block\.weight", r"\1.attn.memory.weight"),
        (r"/(blocks\.\d+)/mlp/mlp\.([02])/MatMul:.*", r"\1.mlp.\2.weight"),
        (r"/(blocks\.\d+)/mlp/mlp\.([02])/Add:.*", r"\1.mlp.\2.bias"),
        (r"/quantizer/project_in/MatMul:.*", "project_in.weight"),
        (r"/quantizer/project_in/Add:.*", "project_in.bias"),
    )
)
"""Maps tensors of the graph, as `<node>:<index among its inputs>:<initialiser>`, to keys of `S3Tokenizer`."""


def _renamed(key: str) -> str:
    for pattern, name in _NAMES:
        if match := pattern.fullmatch(key):
            return match.expand(name)
    return key
