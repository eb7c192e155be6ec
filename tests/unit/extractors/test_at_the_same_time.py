"""A worker that processes other clips at the same time makes the same artifact of a clip.

On a GPU, an encoder that encodes several clips at once rounds otherwise. Real encoders with tiny weights run
through the handler of extraction jobs.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.extractor_worker.pipeline.extraction import Extraction, LoadedProfile
from services.extractor_worker.pipeline.proof import LIMITS, compare
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import extract
from tests.unit.extractors.tiny_engines import ENGINES, every_engine
from tests.unit.test_extraction import PROFILE, Attempts, jobs

RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
SPECS = {name: BUILT_IN[engine.profile].tensors for name, engine in ENGINES.items()}
IDS = [f"clip-{number}" for number in range(24)]


def clip_of(job_id: str) -> ReferenceAudio:
    """Return the job's clip. Clips differ in length, rate and voice."""
    number = IDS.index(job_id)
    rate = RATES[number % len(RATES)]
    return ReferenceAudio(signals.speechlike(0.8 + 0.13 * (number * 7 % 11), rate, seed=number), rate)


class FakeAttempts(Attempts):
    """Keeps the published tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, Mapping[str, np.ndarray]] = {}

    def read_clip(self, work: Any) -> ReferenceAudio:  # type: ignore[override]
        return clip_of(work.job_id)

    def publish(self, work: Any, tensors: Any, _used_seconds: float | None) -> bool:
        self.tensors[work.job_id] = tensors
        return True


@pytest.mark.gpu
@every_engine
def test_other_jobs_of_a_worker_change_no_artifact(name: str):
    extractor, attempts = ENGINES[name].load(), FakeAttempts()
    expected = {job_id: extract(extractor, clip_of(job_id))[0] for job_id in IDS}
    provenance = SimpleNamespace(profile=SimpleNamespace(name=PROFILE))
    extraction = Extraction(
        attempts, {PROFILE: LoadedProfile(provenance, extractor)}, threads=8, retry_seconds=1
    )
    try:
        assert extraction(jobs(*IDS)) == ["published"] * len(IDS)
    finally:
        extraction.close()
    for job_id in IDS:
        if extractor.batch_seconds:
            findings = compare(attempts.tensors[job_id], expected[job_id], SPECS[name], LIMITS["float32"])
            assert not [finding.text for finding in findings if not finding.passed]
            continue
        assert attempts.tensors[job_id].keys() == expected[job_id].keys()
        for tensor, values in expected[job_id].items():
            np.testing.assert_array_equal(
                attempts.tensors[job_id][tensor], values, err_msg=f"{job_id} {tensor}"
            )
