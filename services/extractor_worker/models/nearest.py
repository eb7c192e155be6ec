"""The search for the nearest entry of a codebook. This module knows no codec."""

from torch import Tensor


def nearest_entries(vectors: Tensor, entries: Tensor) -> Tensor:
    """Return the index of the nearest entry for each vector; among equally near entries, the first.

    Args:
        vectors: [M, D].
        entries: [size, D].

    Returns:
        int64 [M].
    """
    # Engines sum in this order. Another order would choose other entries where two are almost equally near.
    distances = (
        vectors.pow(2).sum(1, keepdim=True) - 2 * vectors @ entries.T + entries.pow(2).sum(1, keepdim=True).T
    )  # [M, size]
    return (-distances).max(dim=1).indices
