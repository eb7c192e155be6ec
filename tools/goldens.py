"""Makes goldens that hold on every processor: float64 results, and the certainty of each code.

Sums in float32 differ a little between processors, so a float32 result of one processor is not exact for the
others. The tools that make goldens therefore run the reference twice, in float32 and in float64. They keep
the float64 result and the distance of the float32 result from it. Tests allow the extractors a small multiple
of that distance (tests/unit/extractors/parity.py).
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

SAFETY = 8.0
"""A decision is the same everywhere if its lead is this many times the reference's own rounding error."""


@contextmanager
def float64() -> Iterator[None]:
    """Compute everything inside the block in float64, even where a model calls `.float()`.

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
    """Replace an attribute for the duration of the block."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def golden(
    name: str, exact: np.ndarray, computed: np.ndarray, scale: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> dict[str, np.ndarray]:
    """Return the arrays that are kept of a tensor of real numbers.

    Args:
        name: the name of the exact tensor.
        exact: the reference's result in float64.
        computed: the reference's result in float32 or bfloat16.
        scale: converts both to the scale on which they are compared, for example `np.exp` for logarithms.

    Returns:
        The exact tensor under its name, and the reference's largest distance from it under
        `{name}_deviation`.
    """
    assert exact.dtype == np.float64
    exact = _shortened(exact)
    deviation = np.abs(scale(computed.astype(np.float64)) - scale(exact)).max()
    return {name: exact, f"{name}_deviation": np.array(deviation)}


def _shortened(exact: np.ndarray) -> np.ndarray:
    """Keep 36 bits of each mantissa, far more than float32 has. The zeroed bits compress well."""
    return (exact.view(np.int64) + (1 << 15) & -(1 << 16)).view(np.float64)


def save(path: Path, arrays: dict[str, np.ndarray], packages: Sequence[str], **facts: Any) -> None:
    """Write goldens with the versions of the packages that made them, and print how certain they are.

    Args:
        path: the file, in the folder of the checkpoint.
        packages: the names of the packages.
        facts: further entries of `made_with`, for example a seed.
    """
    made_with = {package: version(package).split("+")[0] for package in packages} | facts
    arrays["made_with"] = np.array(json.dumps(made_with, sort_keys=True))
    np.savez_compressed(path, **arrays)
    print(arrays["made_with"])
    for kind in ("_certain", "_deviation"):
        print({name: float(array.mean()) for name, array in arrays.items() if name.endswith(kind)})
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    for file in files:
        if file.suffix == ".safetensors":
            file.chmod(0o644)  # safetensors writes 0600
    print(sum(file.stat().st_size for file in files), "bytes")


def resampled(clip: Tensor, source: int, target: int) -> tuple[Tensor, Tensor]:
    """Return a clip that torchaudio has resampled, in float32 and in float64."""
    kernel = import_module("torchaudio.transforms").Resample
    return kernel(source, target)(clip), kernel(source, target, dtype=torch.float64)(clip.double())


def package(name: str) -> ModuleType:
    """Make sub-modules importable without running the package's `__init__`, which would import everything."""
    spec = find_spec(name)
    assert spec is not None
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = list(spec.submodule_search_locations or [])
    return sys.modules[name]


def some_frames(tensor: np.ndarray) -> np.ndarray:
    """Return every sixteenth frame and the last four of [T, …]. All frames would make the files large."""
    return np.concatenate([tensor[:-4:16], tensor[-4:]])


class Decisions:
    """The distances by which one run of a reference over one clip chose its codes.

    The lead of a decision is the difference between the distances of the second-nearest and the nearest
    entry.
    """

    def __init__(self) -> None:
        self._distances: list[Tensor] = []

    def add(self, distances: Tensor) -> None:
        """Add the distances of one look-up: [T, entries]. The smallest one wins."""
        self._distances.append(distances.detach().double())

    def certain(self, exact: "Decisions", count: int | None = None) -> np.ndarray:
        """Return the number of each frame's look-ups that give the same result on every processor: uint8 [T].

        The look-ups of a frame depend on those before them, so none counts after the first uncertain one. A
        look-up is certain if its lead in float64 is more than `SAFETY` times the rounding error of a lead:
        the largest error among the frames of that look-up.

        Args:
            exact: the decisions for the same clip in float64. `self` has those in float32.
            count: the number of look-ups to count. The default is all.
        """
        assert len(self._distances) == len(exact._distances)
        all_certain = torch.ones(len(self._distances[0]), dtype=torch.bool)
        certain = torch.zeros(len(all_certain), dtype=torch.uint8)
        for computed, exact_one in list(zip(self._distances, exact._distances, strict=True))[:count]:
            nearest = exact_one.topk(2, largest=False).indices  # [T, 2]
            lead = _lead(exact_one, nearest)
            error = (_lead(computed, nearest) - lead).abs()
            if all_certain.any():
                all_certain &= lead > SAFETY * error[all_certain].max()
            certain += all_certain.to(torch.uint8)
        return certain.numpy()


def _lead(distances: Tensor, nearest: Tensor) -> Tensor:
    """Return the difference of the distances of two entries: [T]."""
    first, second = distances.gather(1, nearest).unbind(1)
    return second - first


@contextmanager
def recorded(owner: Any, name: str, distances: Callable[..., Sequence[Tensor]]) -> Iterator[Decisions]:
    """Record the decisions of a method that looks codes up.

    Args:
        owner: the class that has the method.
        name: the name of the method.
        distances: takes the method's arguments and returns the distances of each of its look-ups.
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
