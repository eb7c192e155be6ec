"""The activation of codecs that descend from DAC: x + sin²(alpha x) / alpha (Ziyin et al., arXiv 2006.08195).
This module knows no codec.
"""

import torch
from torch import Tensor, nn

_EPSILON = 1e-9
"""Added to alpha, so that 1 / alpha is finite."""


class Snake(nn.Module):
    """The activation, with one alpha for each channel: [B, C, T] -> [B, C, T]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, width, 1))

    def forward(self, hidden: Tensor) -> Tensor:
        # Work in place on the intermediate tensor, because tensors of this size use the most memory.
        wave = (self.alpha * hidden).sin_().square_()
        return wave.mul_((self.alpha + _EPSILON).reciprocal()).add_(hidden)
