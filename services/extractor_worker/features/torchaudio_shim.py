"""Imports a module that needs `torchaudio` on machines without torchaudio, by means of a stand-in for it.

torchaudio's wheel loads only beside the build of torch that it was made for, and Higgs Audio's tokenizer
needs only one resampling kernel from it. No other module sees the stand-in, not even while the import runs,
because other code checks whether torchaudio is installed to decide what it may do. This module knows no
model.
"""

import builtins
import functools
import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from services.extractor_worker.features import real_torchaudio
from services.extractor_worker.features.resample import SincHann

_MAX_KERNELS = 16
_TORCHAUDIO = "torchaudio"


def import_with_torchaudio(name: str) -> ModuleType:
    """Import a module whose own `import torchaudio` needs no more than `torchaudio.functional.resample`.

    The module gets the real torchaudio if that can be imported. Otherwise the module is loaded once, with the
    stand-in, and later imports return the same module.
    """
    if real_torchaudio.imported():
        return importlib.import_module(name)
    return sys.modules.get(name) or _loaded_with_stand_in(name)


def _loaded_with_stand_in(name: str) -> ModuleType:
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(spec)
    # An import statement calls the `__import__` among the builtins of the namespace that its code runs in.
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_with(_stand_in())}
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_with(stand_in: ModuleType) -> Callable[..., ModuleType]:
    def import_module(name: str, *positional: Any, **keywords: Any) -> ModuleType:
        return stand_in if name == _TORCHAUDIO else builtins.__import__(name, *positional, **keywords)

    return import_module


def _stand_in() -> ModuleType:
    torchaudio, functional = ModuleType(_TORCHAUDIO), ModuleType(f"{_TORCHAUDIO}.functional")
    vars(functional)["resample"] = resample
    vars(torchaudio)["functional"] = functional
    return torchaudio


def resample(waveform: Tensor, orig_freq: int, new_freq: int) -> Tensor:
    """Resample float32 samples like `torchaudio.functional.resample` with its default kernel.

    Args:
        waveform: float32 [..., N], on any device.
        orig_freq: the sample rate of `waveform` in Hz.
        new_freq: the sample rate of the result in Hz.

    Returns:
        float32 [..., ceil(N * new_freq / orig_freq)].
    """
    if orig_freq == new_freq:
        return waveform
    return _kernel(orig_freq, new_freq, waveform.device)(waveform)


@functools.lru_cache(maxsize=_MAX_KERNELS)
def _kernel(orig_freq: int, new_freq: int, device: torch.device) -> SincHann:
    """Build the kernel on the device, as torchaudio does."""
    return SincHann(orig_freq, new_freq, torch.float32, device)
