"""What an exception says of the device it comes from: whether memory was short, whether the device is lost.
Knows torch and no model.
"""

import re

import torch

_MEMORY_WAS_SHORT = re.compile(
    r"out of memory"  # torch, the CUDA driver and runtime
    r"|ALLOC_FAILED|ALLOCATION_FAILED"  # cuBLAS, cuDNN, cuFFT: their workspaces are not torch's
    r"|can't allocate memory"  # torch on a CPU
    r"|failed to allocate memory",  # onnxruntime
    re.IGNORECASE,
)


def memory_was_short(error: Exception) -> bool:
    """Libraries beneath torch say so in the text alone."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_MEMORY_WAS_SHORT.search(str(error)))


def is_lost(device: torch.device) -> bool:
    """Whether nothing more can be computed there by this process, as after an illegal access or a failed
    assertion on a GPU: every later call fails as well.
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
