"""Imports torchaudio where it works, and returns None where it does not. It knows nothing of its uses.

torchaudio's wheel loads only beside a build of torch for the same version of CUDA, or for CPUs if it was made
for them. Nothing may depend on it, because a worker may be installed with another one, or without any.
"""

import importlib
from types import ModuleType


def imported(name: str = "torchaudio") -> ModuleType | None:
    """Import torchaudio, or one of its modules. Returns None where it is absent or does not load.

    Args:
        name: `torchaudio`, or a module of it, such as `torchaudio.transforms`.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):  # absent; its compiled part does not load; another CUDA
        return None
