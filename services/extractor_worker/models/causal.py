"""Causal layers of codecs that descend from DAC: no output depends on later inputs. This module knows no
codec.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from services.extractor_worker.models.convolution import Conv1d
from services.extractor_worker.models.snake import Snake

KERNEL = 7
_DILATIONS = (1, 3, 9)


class CausalConv(Conv1d):
    """A convolution padded on the left: [B, C, T] -> [B, C', T / stride]. The stride must divide T."""

    def __init__(self, width_in: int, width_out: int, kernel: int, **options: int) -> None:
        """Make the layer. `options` are `stride`, `dilation` and `groups`."""
        super().__init__(width_in, width_out, kernel, **options)  # type: ignore[arg-type]  # they are integers
        window = (kernel - 1) * self.dilation[0] + 1
        self.left = window - self.stride[0]

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(functional.pad(hidden, (self.left, 0)) if self.left else hidden)


class WrappedCausalConv(nn.Module):
    """A `CausalConv` as the attribute `conv`, for files that publish its weights under this name."""

    def __init__(self, width_in: int, width_out: int, kernel: int, **options: int) -> None:
        super().__init__()
        self.conv = CausalConv(width_in, width_out, kernel, **options)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.conv(hidden)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Runs several layers one after the other. Published weights call them `block`."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(*layers)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.block(hidden)  # type: ignore[no-any-return]


class ResidualUnit(Block):
    """Two convolutions beside a shortcut: [B, C, T] -> [B, C, T].

    Args:
        convolution: `CausalConv` or `WrappedCausalConv`.
    """

    def __init__(
        self, width: int, dilation: int, convolution: Callable[..., nn.Module], groups: int = 1
    ) -> None:
        super().__init__(
            Snake(width),
            convolution(width, width, KERNEL, dilation=dilation, groups=groups),
            Snake(width),
            convolution(width, width, 1),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + super().forward(hidden)


def downsampling_layers(
    width: int, rate: int, convolution: Callable[..., nn.Module], groups: int = 1
) -> list[nn.Module]:
    """Return three residual units and a strided convolution: [B, C, T] -> [B, 2 * C, T / rate]."""
    units = [ResidualUnit(width, dilation, convolution, groups) for dilation in _DILATIONS]
    return [*units, Snake(width), convolution(width, 2 * width, 2 * rate, stride=rate)]
