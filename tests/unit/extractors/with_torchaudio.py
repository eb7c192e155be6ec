"""Marks tests that compare us with torchaudio. Where it does not import, they run in a process of their own.

`make setup-all` installs torchaudio into a folder beside the environment, without its compiled part, which
loads only beside a CUDA build of torch. What we compare is plain Python.
"""

import sys
from pathlib import Path

import pytest

from services.extractor_worker.features import real_torchaudio

PLAIN = Path(sys.prefix) / "torchaudio"
"""The folder with torchaudio's plain Python, for PYTHONPATH."""

needs_torchaudio = pytest.mark.skipif(
    real_torchaudio.imported() is None, reason="test_torchaudio.py runs it with torchaudio's plain Python"
)
