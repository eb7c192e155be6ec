"""Compares a worker's first clip with its tenth, with the warm-up that a worker does and without it.

Each profile is measured in a process of its own: full size, random weights, clips of 10 s at the encoder's
rate.
Environment: `WARM_UP_PROFILES`, comma-separated, and `WARM_UP_DEVICE`.

    python -m benchmarks.warm_up <profile> <device> <warm>     one of them
"""

import os
import sys
from typing import Any

import torch

from benchmarks.encoder_timing import Load, report, seconds_of
from benchmarks.extraction import child
from benchmarks.own_encoders import extract
from services.extractor_worker.device.host_memory import keep_freed_memory
from services.extractor_worker.engines.catalogue import load_extractor
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.process import warm_up
from services.extractor_worker.weights.loading import UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN

PROFILES = os.environ.get("WARM_UP_PROFILES", "qwen3-tts-0.6b,ecapa-voxceleb,speechtokenizer,cosyvoice3-0.5b")
DEVICE = os.environ.get("WARM_UP_DEVICE", "cpu")
CLIPS = 10
SECONDS = 10.0
LIMIT_SECONDS = 600.0
GOAL = 1.15
"""Largest ratio of the first to the tenth clip. Two clips in succession differ by about as much."""


def measure(profile: str, device: str, warm: str) -> None:
    torch.manual_seed(0)
    if device == "cpu":
        keep_freed_memory()  # as a worker does
    extractor = load_extractor(Loading(profile=BUILT_IN[profile], source=UntrainedWeights(), device=device))
    rate = BUILT_IN[profile].sample_rate
    samples, _ = Load(rate, SECONDS, (SECONDS,), device).clips()
    clip = ReferenceAudio(samples, rate)
    if warm == "warm":
        warm_up(extractor)
    seconds = [seconds_of(lambda: extract(extractor, clip)) for _ in range(CLIPS)]
    report(first=seconds[0], tenth=seconds[-1])


def main() -> bool:
    """Print the table. Returns whether the goal is reached."""
    print("| profile | first, ms | tenth | ratio | without warm-up: first | ratio |")
    print("|---|---|---|---|---|---|")
    reached = True
    for profile in PROFILES.split(","):
        warm, cold = (_measured(profile, how) for how in ("warm", "cold"))
        reached &= warm["first"] <= GOAL * warm["tenth"]
        print(
            f"| {profile} | {1e3 * warm['first']:,.0f} | {1e3 * warm['tenth']:,.0f} "
            f"| {warm['first'] / warm['tenth']:.2f} "
            f"| {1e3 * cold['first']:,.0f} | {cold['first'] / cold['tenth']:.2f} |",
            flush=True,
        )
    return reached


def _measured(profile: str, how: str) -> dict[str, Any]:
    found, problem = child(sys.executable, LIMIT_SECONDS, "warm_up", profile, DEVICE, how)
    if not found:
        raise RuntimeError(f"{profile}: {problem}")
    return found


if __name__ == "__main__":
    measure(*sys.argv[1:])
