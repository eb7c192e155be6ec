"""Measures what a worker's proof of its encoders costs: at the first start, when it is made, and at the next
start, when it is remembered.

Each profile is measured in a process of its own, at full size with random weights. The random weights of the
second copy are drawn again where real ones would be read from a file. The first start includes the time for
that. Environment: `PROOF_PROFILES` (comma-separated; all by default), `PROOF_DEVICE`, `PROOF_DTYPE`.

    python -m benchmarks.proof <profile> <device> <dtype>     one of them
"""

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from structlog.testing import capture_logs

from benchmarks.encoder_timing import forget_peak, peak_mib, report, seconds_of
from benchmarks.extraction import child
from services.extractor_worker.device.host_memory import keep_freed_memory
from services.extractor_worker.device.machine import machine_description
from services.extractor_worker.engines.catalogue import BUILT_IN as EXTRACTORS
from services.extractor_worker.engines.catalogue import load_extractor
from services.extractor_worker.pipeline.extractor import Extractor
from services.extractor_worker.pipeline.proof import KeptProofs, prove_once
from services.extractor_worker.pipeline.torch_extractor import Loading, SharedModels
from services.extractor_worker.weights.loading import UntrainedWeights
from services.shared.model.profiles import BUILT_IN
from speaker_registry.engine import Dtype

PROFILES = os.environ.get("PROOF_PROFILES", ",".join(EXTRACTORS))
DEVICE = os.environ.get("PROOF_DEVICE", "cpu")
DTYPE = os.environ.get("PROOF_DTYPE", "float32")
LIMIT_SECONDS = 600.0
GOAL_SECONDS = 1.0
"""Longest time that a remembered proof may add to a start."""


def measure(name: str, device: str, dtype: str) -> None:
    if device == "cpu":
        keep_freed_memory()  # as a worker does
    profile = BUILT_IN[name]
    loading = Loading(profile=profile, source=UntrainedWeights(), device=device, dtype=cast(Dtype, dtype))
    trusted = replace(loading, device="cpu", dtype="float32", shared_models=SharedModels(), trusted=True)
    extractor = load_extractor(loading)
    extractor.encode([extractor.prepare(extractor.example())])  # a worker is warm by then
    drawn: list[float] = []

    def load_trusted() -> Extractor:
        loaded: list[Extractor] = []
        drawn.append(seconds_of(lambda: loaded.append(load_extractor(trusted))))
        return loaded[0]

    with tempfile.TemporaryDirectory() as folder:

        def prove() -> None:
            machine, kept = machine_description(torch.device(device)), KeptProofs(Path(folder))
            prove_once(extractor, load_trusted, profile.tensors, machine=machine, kept=kept)

        forget_peak("cpu")
        before = peak_mib("cpu")
        with capture_logs() as lines:
            before_cpu = time.process_time()
            first = seconds_of(prove)
            processor = time.process_time() - before_cpu
            peak = peak_mib("cpu")
            again = seconds_of(prove)
    [held] = [line for line in lines if line["event"] == "proof.held"]
    report(
        first=first,
        processor=processor,
        drawn=drawn[0],
        again=again,
        mib=peak - before,
        findings=held["findings"],
    )


def main() -> bool:
    """Print the table. Returns whether every proof held and was remembered fast enough."""
    print("| profile | first start, s | … of it drawn | processor, s | next start, s | host memory, MiB |")
    print("|---|---|---|---|---|---|")
    reached, findings = True, list[str]()
    for name in PROFILES.split(","):
        found: dict[str, Any]
        found, problem = child(sys.executable, LIMIT_SECONDS, "proof", name, DEVICE, DTYPE)
        if not found:
            print(f"| {name} | {problem} | | | | |")
            reached = False
            continue
        reached &= found["again"] <= GOAL_SECONDS
        findings += [f"{name}: {one.partition(', at')[0]}" for one in found["findings"]]
        print(
            f"| {name} | {found['first']:.1f} | {found['drawn']:.1f} | {found['processor']:.1f} "
            f"| {found['again']:.2f} | {found['mib']:,.0f} |",
            flush=True,
        )
    print("\n" + "\n".join(findings))
    return reached


if __name__ == "__main__":
    measure(*sys.argv[1:])
