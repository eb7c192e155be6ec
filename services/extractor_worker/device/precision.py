"""Makes float32 arithmetic exact on a GPU, as it is on the CPU. This module knows torch's switches but no
model.

By default cuDNN convolves in TF32, which has ten bits of mantissa, and chooses kernels by trial. The same
clip could then give other codes on the next run.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Turn TF32 and kernel trials off inside the block.

    The settings apply to the whole process, so only one thread at a time may use this.
    """
    if device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = False
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        matmul.allow_tf32 = before
