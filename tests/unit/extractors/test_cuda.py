"""What only a GPU can show. Without one these tests are skipped. `make test-gpu` also runs all comparisons
with goldens on it.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.extractor_worker.device.device_memory import show_device_memory
from services.extractor_worker.device.machine import machine_description
from services.extractor_worker.device.precision import exact_float32
from services.extractor_worker.models.convolution import Conv1d
from services.extractor_worker.pipeline.proof import LIMITS, compare, prove
from services.extractor_worker.pipeline.torch_extractor import TorchExtractor
from services.extractor_worker.process import warm_up
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from services.shared.telemetry.metrics import DEVICE_MEMORY
from speaker_registry.errors import ExtractorOutOfMemory
from tests.unit.extractors.conftest import extract
from tests.unit.extractors.parity import HALF_STEP_FLOAT32
from tests.unit.extractors.signals import speechlike
from tests.unit.extractors.tiny_engines import ENGINES, every_engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]

ROOT = Path(__file__).parents[3]
LOST = """
import sys
import numpy as np
import torch
from services.extractor_worker.pipeline.extractor import DeviceLost
from services.shared.audio import ReferenceAudio
from tests.unit.extractors.tiny_engines import ENGINES

extractor = ENGINES["ecapa"].load(device="cuda")
prepared = [extractor.prepare(ReferenceAudio(np.ones(16_000, np.float32), 16_000))]
torch.zeros(4, device="cuda")[torch.tensor([2**20], device="cuda")]  # fails an assertion on the device
try:
    extractor.finish(extractor.encode(prepared)[0])
except DeviceLost as error:
    sys.exit(f"lost: {error}")
"""


def clips_for(name: str) -> list[ReferenceAudio]:
    rate = BUILT_IN[ENGINES[name].profile].sample_rate
    lengths = (1.0, 0.35, 2.61, 1.0)
    return [ReferenceAudio(speechlike(seconds, rate, seed), rate) for seed, seconds in enumerate(lengths)]


def on_gpu(name: str, **loading: Any) -> TorchExtractor[Any, Any]:
    return ENGINES[name].load(device="cuda", **loading)


@every_engine
def test_a_worker_proves_the_encoder_on_the_gpu(name: str) -> None:
    """The proof compares a GPU with the trusted path on the CPU, alone and in a batch."""
    specs = BUILT_IN[ENGINES[name].profile].tensors
    extractor = on_gpu(name)
    warm_up(extractor)
    findings = prove(extractor, lambda: ENGINES[name].load(device="cpu", trusted=True), specs)
    assert findings
    assert not [finding.text for finding in findings if not finding.passed]


@every_engine
def test_the_same_clip_has_the_same_artifact_to_the_last_bit(name: str) -> None:
    """cuDNN may not choose its kernels by trial, and no sum may depend on the order of threads."""
    extractor = on_gpu(name)
    for clip in clips_for(name):
        [first], [second] = extract(extractor, clip), extract(on_gpu(name), clip)
        for tensor in first:
            np.testing.assert_array_equal(first[tensor], second[tensor], err_msg=tensor)


@every_engine
def test_a_batch_changes_a_clip_within_the_proofs_limits(name: str) -> None:
    """Clips that are uploaded at the same time are encoded together."""
    extractor, clips = on_gpu(name), clips_for(name)
    specs = BUILT_IN[ENGINES[name].profile].tensors
    for clip, together in zip(clips, extract(extractor, *clips), strict=True):
        [alone] = extract(extractor, clip)
        findings = compare(together, alone, specs, LIMITS["float32"])
        assert not [finding.text for finding in findings if not finding.passed]


def test_float32_is_exact_although_torch_convolves_in_tf32() -> None:
    """TF32 keeps ten bits of the mantissa, which is a thousand times the error of float32."""
    torch.manual_seed(0)
    signal, weight = torch.randn(1, 256, 4096), torch.randn(256, 256, 7)
    exact = torch.conv1d(signal.double(), weight.double())
    arguments = (signal.cuda(), weight.cuda())

    def error() -> float:
        return float((torch.conv1d(*arguments).cpu().double() - exact).abs().max() / exact.abs().max())

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        careless = error()
    with exact_float32(torch.device("cuda")):
        assert error() < 64 * HALF_STEP_FLOAT32 < careless


def test_a_convolution_with_many_groups_takes_little_memory_and_is_exact() -> None:
    """The layer is VoxCPM2's widest, with a clip of 10 s. cuDNN took 70 GiB for the encoder."""
    torch.manual_seed(0)
    layer = Conv1d(128, 128, 7, dilation=9, groups=128)
    hidden = torch.randn(1, 128, 160_000)
    with torch.inference_mode():
        exact = Conv1d(128, 128, 7, dilation=9, groups=128).double()
        exact.load_state_dict(layer.state_dict())
        expected = exact(hidden.double())
        layer.cuda()
        on_device = hidden.cuda()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with exact_float32(torch.device("cuda")):
            ours = layer(on_device)
        taken = torch.cuda.max_memory_allocated() - before
    assert taken < 3 * ours.nbytes
    error = float((ours.cpu().double() - expected).abs().max() / expected.abs().max())
    assert error < 16 * HALF_STEP_FLOAT32


@pytest.fixture
def _little_memory() -> Iterator[None]:
    """Allow this process 1/1000 of the GPU's memory."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.001)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("_little_memory")
def test_a_gpu_that_is_full_fails_the_clip_and_serves_the_next() -> None:
    """The worker encodes fewer clips at once then, so the memory must be free again."""
    extractor = on_gpu("dac")
    long, short = (ReferenceAudio(speechlike(seconds, 16_000), 16_000) for seconds in (900.0, 0.5))
    with pytest.raises(ExtractorOutOfMemory, match=r"^the device cuda.* has too little memory for one clip$"):
        extract(extractor, long)
    assert extract(extractor, short)[0]["codes"].shape[1] == 25


def test_a_failed_assertion_on_the_gpu_is_a_lost_device() -> None:
    """Every later call fails as well, so the worker has to end. The process of the tests stays whole."""
    done = subprocess.run(
        [sys.executable, "-c", LOST], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert "lost: cuda" in done.stderr, done.stderr[-2000:]


def test_the_card_is_named_and_its_memory_is_shown() -> None:
    """The manifest names the GPU's model, the proof its serial number, and the metrics its memory."""
    extractor = on_gpu("ecapa")
    where = extractor.computed_on
    assert (where.device, where.gpu) == ("cuda", torch.cuda.get_device_name())
    description = machine_description(extractor.device)
    assert description["gpu_uuid"] == str(torch.cuda.get_device_properties(0).uuid)
    show_device_memory(extractor.device)
    used = DEVICE_MEMORY.labels("cuda", "used").collect()[0].samples[0].value
    total = DEVICE_MEMORY.labels("cuda", "total").collect()[0].samples[0].value
    assert 0 < used < total
