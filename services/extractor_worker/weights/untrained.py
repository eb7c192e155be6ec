"""Makes random weights for a published architecture: real code, real shapes, useless voices. This module
knows no files.

They are for tests and for trying things out without a download. The same seed gives the same weights on every
machine: each tensor has a generator of its own, seeded from its name, and is drawn uniformly, because torch's
normal distribution is computed differently on different CPUs.
"""

import hashlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor

_RESIDUAL_SCALE = 0.3
"""The value of layer scales. Published models start with 0.01, which would leave an untrained transformer
without any effect.
"""
_ONES = (
    "norm.weight",
    "bn.weight",
    ".running_var",
    "codebook.cluster_usage",
    "codebook.initialized",
    ".alpha",
)
_ZEROS = (".bias", ".running_mean", ".num_batches_tracked")


def random_tensors(layout: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Return float32 tensors of the layout's shapes, scaled so that activations neither vanish nor explode.

    Codebooks are drawn so that nearly every frame gets codes of its own.
    """
    return {name: _random_tensor(name, shape, seed) for name, shape in layout.items()}


def _random_tensor(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    if name.endswith(_ONES):
        return torch.ones(shape)
    if name.endswith(_ZEROS):
        return torch.zeros(shape)
    if name.endswith((".scale", ".gamma")):
        return torch.full(shape, _RESIDUAL_SCALE)
    bound = math.sqrt(_gain(name) * 3 / math.prod(shape[1:]))  # a variance of gain / fan-in
    generator = torch.Generator().manual_seed(_seed_of(name, seed))
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def _gain(name: str) -> float:
    """Return the gain of a layer. Convolutions get 2, because the rectifier after them halves the
    variance.
    """
    return 2.0 if ".conv" in name else 1.0


def _seed_of(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7])
