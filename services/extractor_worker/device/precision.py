"""float32 that is float32, on a GPU as on the CPU. Knows torch's switches and no model.

cuDNN otherwise convolves in TF32 (ten bits of mantissa) and picks kernels by trial, so the same clip could
give other codes on the next run.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """TF32 and kernel trials off while it lasts. The switches are the process's: for one thread at a time."""
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
