"""Tells from an exception whether the device ran out of memory, and whether the device is lost.

This module knows torch but no model.
"""

import re

import torch

_OUT_OF_MEMORY = re.compile(
    r"out of memory"  # torch, the CUDA driver and runtime
    r"|ALLOC_FAILED|ALLOCATION_FAILED"  # cuBLAS, cuDNN, cuFFT: their workspaces are not torch's
    r"|can't allocate memory"  # torch on a CPU
    r"|could not create a primitive(?! descriptor)"  # oneDNN; without a descriptor, it supports no such call
    r"|failed to allocate memory",  # onnxruntime
    re.IGNORECASE,
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that memory was short. Libraries below torch say so only in the text."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error)))


def is_lost(device: torch.device) -> bool:
    """Return whether this process can compute nothing more on the device.

    After an illegal access or a failed assertion on a GPU every later call fails as well.
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
