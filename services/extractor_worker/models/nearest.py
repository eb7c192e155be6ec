"""Which entry of a codebook is nearest to a vector. Knows no codec."""

from torch import Tensor


def nearest_entries(vectors: Tensor, entries: Tensor) -> Tensor:
    """The first of those that are nearest.

    Args:
        vectors: [M, D].
        entries: [size, D].

    Returns:
        int64 [M].
    """
    # In this order engines add. Another would decide the closest calls differently.
    distances = (
        vectors.pow(2).sum(1, keepdim=True) - 2 * vectors @ entries.T + entries.pow(2).sum(1, keepdim=True).T
    )  # [M, size]
    return (-distances).max(dim=1).indices
