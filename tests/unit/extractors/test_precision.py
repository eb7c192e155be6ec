"""The switches that would make float32 inexact are off during encoding, and as before afterwards."""

from collections.abc import Iterator

import pytest
import torch

from services.extractor_worker.device.precision import exact_float32


@pytest.fixture(autouse=True)
def _switches_on() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


def switches() -> tuple[bool, bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic


def test_no_tf32_and_no_trials_while_encoding_on_a_gpu() -> None:
    """TF32 keeps ten bits of mantissa: codes would differ from the CPU's, and from run to run."""
    before = switches()
    with exact_float32(torch.device("cuda")):
        assert switches() == (False, False, False, True)
    assert switches() == before == (True, True, False, False)


def test_the_switches_return_after_an_error() -> None:
    """An out-of-memory must not leave the process with other arithmetic."""
    before = switches()
    with pytest.raises(ZeroDivisionError), exact_float32(torch.device("cuda")):
        raise ZeroDivisionError
    assert switches() == before


def test_nothing_is_touched_on_the_cpu() -> None:
    """There is nothing to switch."""
    with exact_float32(torch.device("cpu")):
        assert switches() == (True, True, False, False)
