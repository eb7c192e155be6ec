"""Measures one encoder in a process of its own: time, memory, and the speed that the machine could attain.

It knows no encoder and nothing of the services, because the references' interpreters run it too. Run alone
(`python -m benchmarks.encoder_timing cpu`), it measures what the machine attains.
"""

import fcntl
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.unit.extractors.signals import speechlike

Samples = NDArray[np.float32]
REPEATS = 3
MARK = "measured "
"""Every line with a result begins with this, because libraries print lines too."""
MATMUL_WIDTH = 2048
CONVOLUTION = {"channels": 512, "samples": 4096, "kernel": 7}
"""The convolution that is timed, of the size that encoders have in the middle."""
ATTEMPTS = 5
CLOCK_SECONDS = 1.0
TURN = "MEASURE_TURN"
"""Environment variable with the descriptor of a locked file, if several processes load side by side."""


@dataclass(frozen=True)
class Load:
    """Clips, and the device that encodes them. All have the encoder's own rate, so nothing is resampled."""

    sample_rate: int
    one_seconds: float
    mixed_seconds: tuple[float, ...]
    device: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Load":
        facts = json.loads(text)
        return cls(**facts | {"mixed_seconds": tuple(facts["mixed_seconds"])})

    def clips(self) -> tuple[Samples, list[Samples]]:
        """Return the one clip and the mixed clips. They are parts of one recording, and so take little
        memory.
        """
        recording = speechlike(max(self.one_seconds, *self.mixed_seconds), self.sample_rate)
        lengths = [round(seconds * self.sample_rate) for seconds in (self.one_seconds, *self.mixed_seconds)]
        one, *mixed = [recording[:length] for length in lengths]
        return one, mixed


def measure(
    load: Load, extract: Callable[[Samples], object], extract_all: Callable[[Sequence[Samples]], object]
) -> None:
    """Print a line for each result as soon as it is there, because the process may be ended at a time limit.

    Both functions must return only when the results are on the CPU. Peak memory is counted from here on: it
    includes the weights, but not what loading took and gave back.
    """
    one, mixed = load.clips()
    wait_for_turn()
    forget_peak(load.device)
    extract(one)
    if load.device != "cpu":
        raise_clocks(lambda: extract(one))
    report(one_seconds=median(seconds_of(lambda: extract(one)) for _ in range(REPEATS)))
    if load.device != "cpu":
        extract_all(mixed)  # every new length is looked up, and memory fetched, a first time
    report(mixed_seconds=seconds_of(lambda: extract_all(mixed)))
    report(peak_mib=peak_mib(load.device))


def raise_clocks(work: Callable[[], object]) -> None:
    """Work for a while: a GPU that was idle needs a moment until it runs at its full clock."""
    end = time.perf_counter() + CLOCK_SECONDS
    while time.perf_counter() < end:
        work()


def wait_for_turn() -> None:
    """Wait until no other process loads or measures. None of them does either until this process ends."""
    if descriptor := os.environ.get(TURN):
        fcntl.flock(int(descriptor), fcntl.LOCK_EX)


def report(**result: Any) -> None:
    print(f"{MARK}{json.dumps(result)}", flush=True)


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# --- memory


def forget_peak(device: str) -> None:
    gc.collect()
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # makes VmHWM what is resident now
    else:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_mib(device: str) -> float:
    """Return the resident memory of this process, or on a GPU the device memory that torch has taken."""
    if device != "cpu":
        return torch.cuda.max_memory_reserved() / 2**20
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


# --- the machine


def attainable_gflops(device: str) -> float:
    """Return the better rate of a matrix product and a convolution, in float32 (no TF32). Each product counts
    as 2 operations.
    """
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return max(matmul_gflops(device), convolution_gflops(device))


def matmul_gflops(device: str) -> float:
    matrix = torch.rand(MATMUL_WIDTH, MATMUL_WIDTH, device=device)
    return 2 * MATMUL_WIDTH**3 / best_seconds(lambda: matrix @ matrix, device) / 1e9


def convolution_gflops(device: str) -> float:
    channels, samples, kernel = CONVOLUTION.values()
    signal = torch.rand(1, channels, samples, device=device)
    weight = torch.rand(channels, channels, kernel, device=device)
    operations = 2 * channels**2 * kernel * (samples - kernel + 1)
    return operations / best_seconds(lambda: torch.conv1d(signal, weight), device) / 1e9


@torch.inference_mode()
def best_seconds(work: Callable[[], object], device: str) -> float:
    def to_its_end() -> None:
        work()
        if device != "cpu":
            torch.cuda.synchronize()

    to_its_end()
    return min(seconds_of(to_its_end) for _ in range(ATTEMPTS))


def main(device: str) -> None:
    report(gflops=attainable_gflops(device), threads=torch.get_num_threads(), torch=torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1])
