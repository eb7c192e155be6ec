"""The clips that goldens are made from, and how a golden says which one it was."""

import hashlib

import numpy as np

from services.extractor_worker.pipeline.speechlike import Samples, speechlike

__all__ = ["Samples", "digest", "speechlike"]


def digest(samples: Samples) -> str:
    """sha256 of the samples' bytes: a golden holds only for the clip it was made from."""
    return hashlib.sha256(np.ascontiguousarray(samples, dtype="<f4").tobytes()).hexdigest()
