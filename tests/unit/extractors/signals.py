"""The clips that goldens are made from, and the digest by which a golden names its clip."""

import hashlib

import numpy as np

from services.extractor_worker.pipeline.speechlike import Samples, speechlike

__all__ = ["Samples", "digest", "speechlike"]


def digest(samples: Samples) -> str:
    """Return the sha256 of the samples' bytes. A golden is valid only for the clip that it was made from."""
    return hashlib.sha256(np.ascontiguousarray(samples, dtype="<f4").tobytes()).hexdigest()
