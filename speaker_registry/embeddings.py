"""Checks speaker embeddings as callers give them, in memory or in a JSON file.

This module knows no voices and sends nothing.
"""

import json
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from speaker_registry.artifact import canonical_json
from speaker_registry.errors import InvalidEmbedding

MAX_EMBEDDING_BYTES = 1024**2
"""Maximum size of a JSON file with an embedding."""
MAX_EMBEDDING = 4096
"""Maximum length of an embedding."""


def parse_embedding(data: bytes, name: str) -> np.ndarray:
    """Parse a JSON file with an embedding: float64 [D].

    Args:
        name: What an error calls the file.

    Raises:
        InvalidEmbedding: The file is not a JSON list of finite numbers.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list):
        raise _refusal(f"{name} is not a JSON list of numbers")
    return _vector(values, name)


def embedding_json(embedding: ArrayLike) -> str:
    """Encode an embedding for the form field of an upload.

    Raises:
        InvalidEmbedding: The embedding is not one row of finite numbers.
    """
    return canonical_json(_vector(embedding, "the embedding").tolist())


def _vector(embedding: ArrayLike, name: str) -> np.ndarray:
    """Return an embedding as float64 [D]. The registry keeps float32, so larger numbers count as infinite."""
    try:
        vector = _floats(embedding)
    except (TypeError, ValueError):
        raise _refusal(f"{name} is not a list of numbers") from None
    except RuntimeError:  # torch
        raise _refusal(
            f"{name} is a tensor that numpy cannot read; accepted: one without a gradient, as "
            "`tensor.detach()` returns it"
        ) from None
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(vector.astype(np.float32)).all()
    if vector.ndim != 1 or not vector.size or not is_finite:
        raise _refusal(
            f"{name} has shape {list(vector.shape)}, or values that are not finite; accepted: one row of "
            "finite numbers"
        )
    if vector.size > MAX_EMBEDDING:
        raise _refusal(f"{name} has {vector.size} numbers; accepted: 1 to {MAX_EMBEDDING} numbers")
    return vector


def _floats(values: ArrayLike) -> np.ndarray:
    """Convert real numbers of any kind to float64. Raises `TypeError` or `ValueError` for anything else."""
    if isinstance(values, np.ndarray) and (values.dtype.kind not in "iufO" or np.ma.is_masked(values)):
        raise TypeError("as objects, some times are integers, and masked numbers are like others")
    given = np.asarray(values, dtype=object)
    if any(isinstance(one, bool | np.timedelta64) or not isinstance(one, Real) for one in given.ravel()):
        raise TypeError("numpy would convert texts, booleans and times, too")
    try:
        return given.astype(np.float64)
    except OverflowError:  # an int
        return np.full(given.shape, np.inf)


def _refusal(message: str) -> InvalidEmbedding:
    return InvalidEmbedding(message, param="speaker_embedding")
