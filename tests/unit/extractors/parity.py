"""Compares what an encoder computes with what its reference does, on every processor alike.

Processors add up in different orders and round differently on the way, so no two of them give the same
float32 result, and a tolerance read off one of them fails on the next. The goldens therefore hold the
reference's result in float64, and how far from it the reference itself stays in float32. Ours may be a few
times as far off, and no more. tools/goldens.py makes the numbers.
"""

from collections.abc import Callable, Mapping

import numpy as np

FARTHER = 4.0
"""Our largest error may be this many times the reference's largest error.

Both are the largest of many rounding errors of the same sums. Their size depends on the order of summation:
if n terms are added one after the other, the error grows like sqrt(n); in k partial sums (the lanes of vector
registers), it grows like sqrt(n / k). Processors have between 4 and 64 lanes, so their errors differ by no
more than sqrt(64 / 4) = 4.
"""
UNITS = 4.0
"""This many half steps of the largest value are always allowed, because a reference can be right by luck."""
HALF_STEP_FLOAT32, HALF_STEP_BFLOAT16 = 2.0**-24, 2.0**-9
"""Half the distance from 1 to the next larger number."""

Goldens = Mapping[str, np.ndarray]


def assert_parity(
    ours: np.ndarray,
    goldens: Goldens,
    name: str,
    scale: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> None:
    """Fails where ours is farther from the golden than the reference's float32 arithmetic explains.

    Args:
        ours: float32, in the shape of the golden.
        goldens: in which `{name}_deviation` says how far the reference is from the exact tensor `name`.
        scale: takes tensors to the scale that the deviation is on, e.g. `np.exp` for logarithms: near its
            floor a logarithm magnifies the rounding errors of what it is taken of.
    """
    exact, deviation = scale(goldens[name]), float(goldens[f"{name}_deviation"])
    assert_near(scale(ours.astype(np.float64)), exact, deviation, HALF_STEP_FLOAT32)


def assert_near(ours: np.ndarray, exact: np.ndarray, deviation: float, half_step: float) -> None:
    """Fails where ours is farther from the exact tensor than a reference that is `deviation` from it may be.

    Args:
        half_step: half the distance from 1 to the next larger number of the dtype that was computed in.
    """
    assert ours.shape == exact.shape
    error = np.abs(ours - exact).max()
    allowed = FARTHER * deviation + UNITS * half_step * np.abs(exact).max()
    assert error <= allowed, f"off by {error:.2e}, {allowed:.2e} is allowed"


def assert_same_codes(ours: np.ndarray, goldens: Goldens, name: str, frames: int = 0) -> None:
    """Fails where a code differs that must be the same on every processor.

    A frame's codes follow from each other. The golden says of each frame how many of its first codes were won
    by more than rounding can change.

    Args:
        ours: in the shape of the golden.
        name: of the golden [T, books], to which `{name}_certain` [T] belongs.
        frames: 1 where both are [books, T].
    """
    codes, certain = goldens[name], goldens[f"{name}_certain"]
    assert ours.shape == codes.shape
    codes, ours = np.moveaxis(codes, frames, 0), np.moveaxis(ours, frames, 0)
    assert certain.mean() >= 0.95 * codes.shape[1], "too few codes are certain for the comparison to say much"
    counted = np.arange(codes.shape[1]) < certain[:, None]
    different = (ours != codes) & counted
    assert not different.any(), f"{name}: {different.sum()} of {counted.sum()} codes differ"
