"""The SEANet encoder of SpeechTokenizer: samples in, latents at 50 Hz out. This module knows no codebooks and
no files.

The convolutions (arXiv 2210.13438) are not causal and reflect the clip at its ends, and the LSTM runs in both
directions. Each frame therefore depends on the whole clip. A batch may only have clips of one length, because
padding would change every frame.

The published convolutions are under weight norm, and those here are not. `published_name` maps the names.
"""

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from services.extractor_worker.models.weight_norm import TwoParts

_KERNEL = 7
"""The kernel size of the first and the last convolution."""
_CONV = ".conv."


@dataclass(frozen=True, slots=True, kw_only=True)
class SeanetConfig:
    """The encoder's fields of SpeechTokenizer's config.json. The defaults are those of hubert_avg."""

    n_filters: int = 64
    strides: tuple[int, ...] = (8, 5, 4, 2)
    """The strides in the decoder's order. The encoder downsamples in the reverse order."""
    dimension: int = 1024
    """The width of the latents."""
    lstm_layers: int = 2
    bidirectional: bool = True
    dilation_base: int = 2
    residual_kernel_size: int = 3
    n_residual_layers: int = 1
    activation: str = "ELU"

    def __post_init__(self) -> None:
        if self.activation != "ELU":
            raise ValueError(f"activation is {self.activation!r:.80}, 'ELU' is expected")
        if self.lstm_layers < 1:
            raise ValueError("lstm_layers is less than 1: there is no encoder without an LSTM")

    @property
    def samples_per_frame(self) -> int:
        """The samples in one frame of latents: 320, which is 20 ms."""
        return math.prod(self.strides)

    @property
    def min_samples(self) -> int:
        """The fewest samples of a clip: the last convolution needs a frame more than it reflects."""
        return _KERNEL // 2 * self.samples_per_frame + 1


class SeanetEncoder(nn.Module):
    def __init__(self, config: SeanetConfig) -> None:
        super().__init__()
        width = config.n_filters
        layers: list[nn.Module] = [ReflectedConv(1, width, _KERNEL)]
        for stride in reversed(config.strides):
            for index in range(config.n_residual_layers):
                layers.append(Residual(width, config.residual_kernel_size, config.dilation_base**index))
            layers += [nn.ELU(), ReflectedConv(width, 2 * width, 2 * stride, stride)]
            width *= 2
        recurrent = Recurrent(width, config.lstm_layers, config.bidirectional)
        layers += [recurrent, nn.ELU(), ReflectedConv(recurrent.width_out, config.dimension, _KERNEL)]
        self.model = nn.Sequential(*layers)

    def forward(self, samples: Tensor) -> Tensor:
        """Encode clips of equal length.

        Args:
            samples: float32 [B, 1, N], N >= `config.min_samples`.

        Returns:
            float32 [B, dimension, ceil(N / samples_per_frame)].
        """
        return self.model(samples)  # type: ignore[no-any-return]


class ReflectedConv(nn.Module):
    """A convolution with reflect padding: [B, C, T] -> [B, C', ceil(T / stride)]."""

    def __init__(
        self, width_in: int, width_out: int, kernel: int = 1, stride: int = 1, dilation: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width_in, width_out, kernel, stride, dilation=dilation)
        self.stride, self.padding = stride, (kernel - 1) * dilation - (stride - 1)

    def forward(self, hidden: Tensor) -> Tensor:
        right = self.padding // 2  # an odd padding has one more on the left
        missing = -hidden.shape[2] % self.stride  # fills up the last frame
        paddings = (self.padding - right, right + missing)
        return self.conv(functional.pad(hidden, paddings, mode="reflect"))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """A bottleneck beside a shortcut, which is a convolution: [B, C, T] -> [B, C, T]."""

    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        narrow = width // 2
        wide, point = ReflectedConv(width, narrow, kernel, dilation=dilation), ReflectedConv(narrow, width)
        self.block = nn.Sequential(nn.ELU(), wide, nn.ELU(), point)
        self.shortcut = ReflectedConv(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.shortcut(hidden) + self.block(hidden)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM with a shortcut. A bidirectional LSTM has one around each direction."""

    def __init__(self, width: int, layers: int, bidirectional: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, layers, bidirectional=bidirectional)
        self.directions = 2 if bidirectional else 1
        self.width_out = self.directions * width

    def forward(self, hidden: Tensor) -> Tensor:
        """Run the LSTM and add the shortcut: [B, C, T] -> [B, width_out, T]."""
        steps = hidden.permute(2, 0, 1)  # [T, B, C]
        recurrent, _ = self.lstm(steps)  # [T, B, width_out]
        return (recurrent + steps.repeat(1, 1, self.directions)).permute(1, 2, 0)  # type: ignore[no-any-return]


def published_name(key: str) -> str | TwoParts:
    """Map a key to its published name: `model.0.conv.bias` is `model.0.conv.conv.bias` in the file."""
    name = key.replace(_CONV, _CONV + _CONV[1:])
    return TwoParts.of_hooks(name) if name.endswith(".weight") else name
