"""Runs our extractors for `benchmarks.extraction`, with random weights, through the worker's own job handler,
without bucket and view.

    python -m benchmarks.own_encoders <profile> <load>
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.encoder_timing import Load, Samples, measure, report
from services.extractor_worker.device.host_memory import keep_freed_memory
from services.extractor_worker.engines.catalogue import load_extractor
from services.extractor_worker.pipeline.extraction import Extraction, LoadedProfile
from services.extractor_worker.pipeline.extractor import Extractor
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.configuration.worker import ExtractorSettings, WorkerSettings
from services.shared.model.profiles import BUILT_IN


@dataclass(frozen=True)
class Work:
    """The parts of an `Attempt` that the handler reads."""

    job_id: str
    clip: ReferenceAudio
    traceparent: None = None
    number: int = 1
    max_attempts: int = 1

    @property
    def version(self) -> Any:
        return SimpleNamespace(clip=self.clip)


class Publisher:
    """Gives out clips and drops the artifacts. The id of a job is the position of its clip."""

    def __init__(self, clips: Sequence[ReferenceAudio]) -> None:
        self._clips = clips

    def in_service(self) -> bool:
        return True

    def is_cut_off(self) -> bool:
        return False

    def take(self, job_id: str, *_: object) -> Work:
        return Work(job_id, self._clips[int(job_id)])

    def read_clip(self, work: Work) -> ReferenceAudio:
        return work.clip

    def progress(self, *_: object) -> None:
        pass

    def publish(self, *_: object) -> bool:
        return True

    def fail(self, _: Work, error: Exception) -> None:
        raise error


def extract_all(extractor: Extractor, clips: Sequence[ReferenceAudio]) -> None:
    """Extract in batches of the size that a worker takes."""
    name = extractor.profile_name
    provenance: Any = SimpleNamespace(profile=BUILT_IN[name])
    publisher: Any = Publisher(clips)
    threads = ExtractorSettings(weights="untrained").threads
    extraction = Extraction(publisher, {name: LoadedProfile(provenance, extractor)}, threads=threads)
    try:
        for batch in batches(jobs_of(name, len(clips)), WorkerSettings().batch_size):
            outcomes = extraction(batch)
            assert set(outcomes) == {"published"}, outcomes
    finally:
        extraction.close()


def jobs_of(profile: str, count: int) -> Iterator[Any]:
    for place in range(count):
        yield SimpleNamespace(
            id=str(place), origin=f"extract.{profile}", kwargs={"speaker": f"benchmark/{place}"}
        )


def batches(jobs: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(jobs, size)):
        yield batch


def extract(extractor: Extractor, clip: ReferenceAudio) -> None:
    encoded = extractor.encode([extractor.prepare(clip)])
    extractor.finish(encoded[0])


def gflop(extractor: Extractor, clip: ReferenceAudio) -> float:
    """Return the arithmetic of torch's matrix products and convolutions. Other libraries' is not counted."""
    prepared = [extractor.prepare(clip)]
    with FlopCounterMode(display=False) as counter:
        extractor.encode(prepared)
    return float(counter.get_total_flops() / 1e9)


def main(profile: str, load: Load) -> None:
    torch.manual_seed(0)
    if load.device == "cpu":
        keep_freed_memory()  # as a worker does
    extractor = load_extractor(
        Loading(profile=BUILT_IN[profile], source=UntrainedWeights(), device=load.device)
    )

    def clip_of(samples: Samples) -> ReferenceAudio:
        return ReferenceAudio(samples, load.sample_rate)

    measure(
        load,
        lambda samples: extract(extractor, clip_of(samples)),
        lambda mixed: extract_all(extractor, [clip_of(samples) for samples in mixed]),
    )
    report(gflop=gflop(extractor, clip_of(load.clips()[0])))  # last: counting takes memory and time


if __name__ == "__main__":
    main(sys.argv[1], Load.parse(sys.argv[2]))
