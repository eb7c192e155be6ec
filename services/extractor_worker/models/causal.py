"""Causal layers of codecs that descend from DAC: no output depends on later inputs. Knows no codec."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from services.extractor_worker.models.snake import Snake

_KERNEL = 7


class CausalConv(nn.Conv1d):
    """A convolution padded on the left: [B, C, T] -> [B, C', T / stride]. The stride must divide T."""

    def __init__(self, width_in: int, width_out: int, kernel: int, **options: int) -> None:
        """`options` are `stride`, `dilation` and `groups`."""
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


class ResidualUnit(nn.Module):
    """Two convolutions beside a shortcut: [B, C, T] -> [B, C, T].

    Args:
        convolution: `CausalConv` or `WrappedCausalConv`.
    """

    def __init__(
        self, width: int, dilation: int, convolution: Callable[..., nn.Module], groups: int = 1
    ) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(width),
            convolution(width, width, _KERNEL, dilation=dilation, groups=groups),
            Snake(width),
            convolution(width, width, 1),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.block(hidden)  # type: ignore[no-any-return]
