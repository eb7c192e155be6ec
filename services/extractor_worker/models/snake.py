"""The activation of codecs that descend from DAC: x + sin²(alpha x) / alpha (Ziyin et al., arXiv 2006.08195).
Knows no codec.
"""

import torch
from torch import Tensor, nn

_POLE = 1e-9
"""Keeps 1 / alpha finite."""


class Snake(nn.Module):
    """[B, C, T] -> [B, C, T], with an alpha for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, width, 1))

    def forward(self, hidden: Tensor) -> Tensor:
        # In place where nobody else looks: these are the largest tensors there are.
        wave = (self.alpha * hidden).sin_().square_()
        return wave.mul_((self.alpha + _POLE).reciprocal()).add_(hidden)
