"""The convolution of encoders that have layers with one group per channel. This module knows no encoder."""

import torch
from torch import Tensor, nn


class Conv1d(nn.Conv1d):
    """torch's convolution, which computes groups without cuDNN: [B, C, T] -> [B, C', T'].

    In exact float32, cuDNN seems to compute such layers group by group: with a clip of 10 s, VoxCPM2's
    encoder ran 67,000 kernels and took 70 GiB of an H100. torch has a kernel for one group per channel.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        if self.groups == 1:
            return super().forward(hidden)
        with torch.backends.cudnn.flags(enabled=False):
            return super().forward(hidden)
