"""torch modules whose weights come from a published file: which tensors they want, and filling them, without
ever drawing weights that are thrown away. Knows no files.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def layout_of(build: Callable[[], nn.Module]) -> dict[str, tuple[int, ...]]:
    """Key -> shape of every parameter and persistent buffer."""
    with torch.device("meta"):
        return {key: tuple(tensor.shape) for key, tensor in build().state_dict().items()}


def filled(build: Callable[[], Module], tensors: Mapping[str, Tensor]) -> Module:
    """For inference. `tensors`: exactly those of `layout_of`, which the module takes as they are."""
    with torch.device("meta"):
        module = build()
    module.load_state_dict(dict(tensors), strict=True, assign=True)
    return module.eval().requires_grad_(False)
