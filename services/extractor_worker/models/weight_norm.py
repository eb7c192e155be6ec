"""Weight norm (arXiv 1602.07868): a weight is published in two parts, its length per output channel and its
direction.

Engines multiply the two at every step. Here they are multiplied once, when weights are loaded. This module
knows no model: callers provide the names under which weights are published.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from services.extractor_worker.weights.modules import Layout


class TwoParts(NamedTuple):
    """The names of a weight's two parts: the length, [C, 1, …], and the direction, [C, …]."""

    length: str
    direction: str

    @staticmethod
    def of_hooks(weight: str) -> "TwoParts":
        """Name the parts as `torch.nn.utils.weight_norm` does."""
        return TwoParts(f"{weight}_g", f"{weight}_v")

    @staticmethod
    def of_parametrizations(weight: str) -> "TwoParts":
        """Name the parts like `torch.nn.utils.parametrizations.weight_norm`. `weight` ends in `.weight`."""
        stem = weight.removesuffix("weight") + "parametrizations.weight"
        return TwoParts(f"{stem}.original0", f"{stem}.original1")


PublishedName = Callable[[str], str | TwoParts]
"""Maps a key of our model to its published name, or to the names of its two parts."""


def published_layout(layout: Layout, name_of: PublishedName) -> dict[str, tuple[int, ...]]:
    """Return the layout that a file must have for the tensors of `layout`."""
    published: dict[str, tuple[int, ...]] = {}
    for key, shape in layout.items():
        match name_of(key):
            case TwoParts(length, direction):
                published |= {length: (shape[0], *[1] * len(shape[1:])), direction: shape}
            case str(name):
                published[name] = shape
    return published


def folded(published: Mapping[str, Tensor], layout: Layout, name_of: PublishedName) -> dict[str, Tensor]:
    """Compute the float32 tensors of `layout` from published ones. Other published tensors are ignored."""
    tensors: dict[str, Tensor] = {}
    for key in layout:
        match name_of(key):
            case TwoParts(length, direction):
                # Both of torch's implementations call this function. Dividing by the norm rounds differently.
                tensors[key] = torch._weight_norm(published[direction].float(), published[length].float(), 0)
            case str(name):
                tensors[key] = published[name].float()
    return tensors
