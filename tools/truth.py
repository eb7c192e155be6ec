"""What a golden needs so that it holds on every processor: the same in float64, and how sure each code is.

Sums in float32 come out a little differently on every processor, so a golden that was computed in float32 on
one of them is no truth for the others. The tools that make goldens therefore run the reference twice, in
float32 and in float64, and keep the float64 result with the distance that float32 kept from it. Tests allow
ours a small multiple of that distance (tests/unit/extractors/parity.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

SAFETY = 8.0
"""How many times the reference's own rounding error a decision must be won by to be the same everywhere."""


@contextmanager
def float64() -> Iterator[None]:
    """Computes everything inside in float64, also where a model asks for float32 by `.float()`.

    Models and inputs still have to be converted by `.double()`.
    """

    def in_float64(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        return tensor.double()

    torch.set_default_dtype(torch.float64)
    try:
        with replaced(torch.Tensor, "float", in_float64):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def replaced(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    """Replaces an attribute for the duration of the block."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def golden(
    name: str, exact: np.ndarray, computed: np.ndarray, scale: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> dict[str, np.ndarray]:
    """What the goldens keep of a tensor of real numbers.

    Args:
        name: under which it is kept.
        exact: float64, by the reference in float64.
        computed: by the reference in float32, or in bfloat16.
        scale: takes both to the scale they are compared on, e.g. `np.exp` where they are logarithms.

    Returns:
        The exact tensor under its name, and the reference's largest distance from it under
        `{name}_deviation`.
    """
    assert exact.dtype == np.float64
    exact = _shortened(exact)
    deviation = np.abs(scale(computed.astype(np.float64)) - scale(exact)).max()
    return {name: exact, f"{name}_deviation": np.array(deviation)}


def _shortened(exact: np.ndarray) -> np.ndarray:
    """With 36 bits of each mantissa, far more than can be told apart in float32: the rest compresses away."""
    return (exact.view(np.int64) + (1 << 15) & -(1 << 16)).view(np.float64)


def some_frames(tensor: np.ndarray) -> np.ndarray:
    """Every sixteenth frame and the last four: all of them would make the files large. [T, …]."""
    return np.concatenate([tensor[:-4:16], tensor[-4:]])


class Decisions:
    """All distances that one run of a reference over one clip looked codes up by.

    A decision's lead is by how much the entry that wins is nearer than the second.
    """

    def __init__(self) -> None:
        self._distances: list[Tensor] = []

    def add(self, distances: Tensor) -> None:
        """`distances`: [T, entries] of one look-up; the smallest one wins."""
        self._distances.append(distances.detach().double())

    def certain(self, exact: "Decisions", count: int | None = None) -> np.ndarray:
        """How many of each frame's look-ups have the same result on every processor: uint8 [T].

        Look-ups of a frame follow from each other, so none counts after the first uncertain one. A look-up is
        certain where the lead in float64 is more than `SAFETY` times the rounding error of a lead. That is
        the largest one seen among the frames of that look-up.

        Args:
            exact: of the same clip in float64; `self` is of float32.
            count: of look-ups to look at, if not all.
        """
        assert len(self._distances) == len(exact._distances)
        still = torch.ones(len(self._distances[0]), dtype=torch.bool)
        certain = torch.zeros(len(still), dtype=torch.uint8)
        for computed, true in list(zip(self._distances, exact._distances, strict=True))[:count]:
            nearest = true.topk(2, largest=False).indices  # [T, 2]
            lead = _lead(true, nearest)
            error = (_lead(computed, nearest) - lead).abs()
            if still.any():
                still &= lead > SAFETY * error[still].max()
            certain += still.to(torch.uint8)
        return certain.numpy()


def _lead(distances: Tensor, nearest: Tensor) -> Tensor:
    """[T]: how much farther the second of two entries is."""
    first, second = distances.gather(1, nearest).unbind(1)
    return second - first


@contextmanager
def recorded(owner: Any, name: str, distances: Callable[..., Sequence[Tensor]]) -> Iterator[Decisions]:
    """Records the decisions of a method that looks codes up.

    Args:
        owner: the class that has the method.
        name: the method's.
        distances: takes what the method takes, and returns the distances of each look-up in it.
    """
    decisions = Decisions()
    original = getattr(owner, name)

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        for one in distances(self, *arguments, **options):
            decisions.add(one)
        return original(self, *arguments, **options)

    with ExitStack() as stack:
        stack.enter_context(replaced(owner, name, method))
        yield decisions
