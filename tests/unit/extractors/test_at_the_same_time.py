"""A clip's artifact is the same whether its worker had nothing else to do, or prepared, encoded and published
other clips at the same time. Real encoders on tiny weights, through the handler of extraction jobs.
"""

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.extractor_worker.pipeline.extraction import Extraction, LoadedProfile
from services.extractor_worker.pipeline.extractor import Extractor
from services.shared.audio import ReferenceAudio
from tests.unit.extractors import (
    signals,
    test_dac,
    test_ecapa_voxceleb,
    test_speech_tokenizer,
    test_voxcpm2,
)
from tests.unit.extractors.conftest import load_tiny, torch_threads
from tests.unit.extractors.cosyvoice3_tiny import load_cosyvoice
from tests.unit.extractors.higgs_audio_tiny import load_higgs
from tests.unit.test_extraction import PROFILE, Publisher, jobs

RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
IDS = [f"clip-{number}" for number in range(24)]
LOADERS: Mapping[str, Callable[[], Extractor]] = {
    "qwen3-tts": load_tiny,
    "cosyvoice3": load_cosyvoice,
    "dac": test_dac.load,
    "ecapa": test_ecapa_voxceleb.load,
    "higgs-audio": load_higgs,
    "speechtokenizer": test_speech_tokenizer.load,
    "voxcpm2": test_voxcpm2.load,
}


def clip_of(job_id: str) -> ReferenceAudio:
    """Each of another length, rate and voice."""
    number = IDS.index(job_id)
    rate = RATES[number % len(RATES)]
    return ReferenceAudio(signals.speechlike(0.8 + 0.13 * (number * 7 % 11), rate, seed=number), rate)


class FakePublisher(Publisher):
    """Keeps what is published."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, Mapping[str, np.ndarray]] = {}

    def read_clip(self, work: Any) -> ReferenceAudio:  # type: ignore[override]
        return clip_of(work.job_id)

    def publish(self, work: Any, tensors: Any, _used_seconds: float | None) -> bool:
        self.tensors[work.job_id] = tensors
        return True


def alone(extractor: Extractor, job_id: str) -> Mapping[str, np.ndarray]:
    """The three steps, and nothing else going on."""
    [encoded] = extractor.encode([extractor.prepare(clip_of(job_id))])
    return extractor.finish(encoded)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Beside the workers' own, so that what differs comes from these."""
    with torch_threads(1):
        yield


@pytest.mark.parametrize("name", LOADERS)
def test_what_else_a_worker_is_at_changes_no_artifact(name: str):
    extractor, publisher = LOADERS[name](), FakePublisher()
    expected = {job_id: alone(extractor, job_id) for job_id in IDS}
    provenance = SimpleNamespace(profile=SimpleNamespace(name=PROFILE))
    extraction = Extraction(
        publisher, {PROFILE: LoadedProfile(provenance, extractor)}, threads=8, retry_seconds=1
    )
    try:
        assert extraction(jobs(*IDS)) == ["published"] * len(IDS)
    finally:
        extraction.close()
    for job_id in IDS:
        assert publisher.tensors[job_id].keys() == expected[job_id].keys()
        for tensor, values in expected[job_id].items():
            np.testing.assert_array_equal(
                publisher.tensors[job_id][tensor], values, err_msg=f"{job_id} {tensor}"
            )
