"""Artifacts do not depend on whether a worker's image can import torchaudio."""

import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from services.extractor_worker.features import real_torchaudio
from services.extractor_worker.features.kaldi_fbank import FbankSettings, fbank
from tests.unit.extractors.signals import speechlike
from tests.unit.extractors.with_torchaudio import PLAIN, needs_torchaudio

COMPARED = ("test_torchaudio.py", "test_resample.py")


@needs_torchaudio
@pytest.mark.parametrize("settings", [FbankSettings(), FbankSettings(bands=23, mean_subtracted=False)])
@pytest.mark.parametrize("seconds", [0.025, 0.5, 3.0])
def test_torchaudio_here_gives_our_filterbank(settings: FbankSettings, seconds: float) -> None:
    """Servers compute the features with torchaudio, so both must agree to the last bit."""
    kaldi = real_torchaudio.imported("torchaudio.compliance.kaldi")
    assert kaldi
    samples, milliseconds = torch.from_numpy(speechlike(seconds, 16_000, seed=3)), 1000 / settings.sample_rate
    theirs = kaldi.fbank(
        samples[None],
        dither=0.0,
        sample_frequency=settings.sample_rate,
        num_mel_bins=settings.bands,
        frame_length=settings.window * milliseconds,
        frame_shift=settings.hop * milliseconds,
        preemphasis_coefficient=settings.preemphasis,
        low_freq=settings.lowest_hertz,
        high_freq=settings.highest_hertz,
        subtract_mean=settings.mean_subtracted,
    )
    assert torch.equal(fbank(samples, settings), theirs)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(
    real_torchaudio.imported() is not None, reason="torchaudio imports here, and was compared"
)
def test_torchaudio_and_we_compute_the_same() -> None:
    """The comparison must also be made where torchaudio does not import, as beside a CPU build of torch."""
    assert (PLAIN / "torchaudio").is_dir(), "make setup-all installs it"
    folder = os.path.dirname(__file__)  # noqa: PTH120 - a name for pytest
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-rs", "-p", "no:cacheprovider"]
    command += ["-k", "torchaudio_here", *(os.path.join(folder, name) for name in COMPARED)]  # noqa: PTH118
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(PLAIN)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "12 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_a_torchaudio_that_does_not_load_is_none(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is absent, its compiled part does not load, or it was made for another CUDA. The worker goes on."""

    def fail(name: str) -> ModuleType:
        raise error(name)

    monkeypatch.setattr(real_torchaudio.importlib, "import_module", fail)
    assert real_torchaudio.imported() is None
