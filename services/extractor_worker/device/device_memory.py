"""Reports how much device memory a worker uses, for the metrics. This module knows torch but no model."""

import os
import resource
from pathlib import Path

import torch

from services.shared.telemetry.metrics import DEVICE_MEMORY


def show_device_memory(device: torch.device) -> None:
    """Report used and total memory of the device at every scrape from now on."""
    used, total = (_cuda_used, _cuda_total) if device.type == "cuda" else (_resident, _physical)
    DEVICE_MEMORY.labels(str(device), "used").set_function(lambda: used(device))
    DEVICE_MEMORY.labels(str(device), "total").set_function(lambda: total(device))


def _cuda_used(device: torch.device) -> int:
    """Return the bytes that torch has reserved, used or unused. The libraries' own contexts are not included.

    The result is 0 until something is computed on the device, because a scrape must not initialise CUDA.
    """
    return torch.cuda.memory_reserved(device) if _cuda_initialized() else 0


def _cuda_total(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if _cuda_initialized() else 0


def _cuda_initialized() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _resident(_: torch.device) -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _physical(_: torch.device) -> int:
    return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
