"""Layouts of torch modules, and modules filled with published weights. No random weights are drawn for them.
This module knows no files.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

Layout = Mapping[str, tuple[int, ...]]
"""Maps each key to its shape."""
Module = TypeVar("Module", bound=nn.Module)


def layout_of(build: Callable[[], nn.Module]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter and persistent buffer, by key."""
    with torch.device("meta"):
        return {key: tuple(tensor.shape) for key, tensor in build().state_dict().items()}


def filled(build: Callable[[], Module], tensors: Mapping[str, Tensor]) -> Module:
    """Return the module for inference, with these tensors, which must be exactly those of `layout_of`."""
    with torch.device("meta"):
        module = build()
    module.load_state_dict(dict(tensors), strict=True, assign=True)
    return module.eval().requires_grad_(False)
