"""Weight norm (arXiv 1602.07868): a weight that is published in two parts, its length per output channel and
its direction. Knows no model: callers say under which names they publish their weights.

Engines put the two together at every step, we do it once, at loading.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

Layout = Mapping[str, tuple[int, ...]]
"""Key -> shape."""


class TwoParts(NamedTuple):
    """Names of a weight's parts, of [C, 1, …] and [C, …]."""

    length: str
    direction: str

    @staticmethod
    def of_hooks(weight: str) -> "TwoParts":
        """As `torch.nn.utils.weight_norm` names them."""
        return TwoParts(f"{weight}_g", f"{weight}_v")

    @staticmethod
    def of_parametrizations(weight: str) -> "TwoParts":
        """As `torch.nn.utils.parametrizations.weight_norm` does. `weight`: ends in `.weight`."""
        stem = weight.removesuffix("weight") + "parametrizations.weight"
        return TwoParts(f"{stem}.original0", f"{stem}.original1")


PublishedName = Callable[[str], str | TwoParts]
"""Under which name, or in which parts, a tensor of ours is published."""


def published_layout(layout: Layout, name_of: PublishedName) -> dict[str, tuple[int, ...]]:
    """What a file must hold for the tensors of `layout`."""
    published: dict[str, tuple[int, ...]] = {}
    for key, shape in layout.items():
        match name_of(key):
            case TwoParts(length, direction):
                published |= {length: (shape[0], *[1] * len(shape[1:])), direction: shape}
            case str(name):
                published[name] = shape
    return published


def folded(published: Mapping[str, Tensor], layout: Layout, name_of: PublishedName) -> dict[str, Tensor]:
    """The tensors of `layout`, float32, out of those of `published_layout`; others are left alone."""
    tensors: dict[str, Tensor] = {}
    for key in layout:
        match name_of(key):
            case TwoParts(length, direction):
                # The function behind both of torch's own: the quotient written out rounds differently.
                tensors[key] = torch._weight_norm(published[direction].float(), published[length].float(), 0)
            case str(name):
                tensors[key] = published[name].float()
    return tensors
