"""The switches that make float32 inexact are off during encoding, and are restored afterwards."""

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
    """TF32 keeps ten bits of the mantissa, so codes would differ from the CPU's and between runs."""
    before = switches()
    with exact_float32(torch.device("cuda")):
        assert switches() == (False, False, False, True)
    assert switches() == before == (True, True, False, False)


def test_the_switches_return_after_an_error() -> None:
    """An out-of-memory error must not change the arithmetic of the process."""
    before = switches()
    with pytest.raises(ZeroDivisionError), exact_float32(torch.device("cuda")):
        raise ZeroDivisionError
    assert switches() == before


def test_nothing_is_touched_on_the_cpu() -> None:
    """The CPU has no such switches."""
    with exact_float32(torch.device("cpu")):
        assert switches() == (True, True, False, False)
