"""A worker process whose extractor computes next to nothing, so that what is around it can be tested and
measured: settings, bucket, queue, leases, announcements and publishing are real. Never imports torch.

`LIGHT_WORKER_PACE` names a file that says how many seconds a clip takes; without it, none.
`LIGHT_WORKER_LIMIT` names a file that says how many clips a worker may encode; it waits at the next one.
`LIGHT_WORKER_FAILS` names a profile whose clips all take longer than the others', and fail.
`LIGHT_WORKER_LACKS` names a profile without weights.
`LIGHT_WORKER_UNPROVEN` names a profile whose encoder fails its proof.
`LIGHT_WORKER_LOST` names a file: while it is there, the device is lost.
"""

import hashlib
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.extractor_worker.pipeline.extractor import DeviceLost
from services.extractor_worker.process import WorkerProcess
from services.shared.audio import ReferenceAudio
from services.shared.configuration.telemetry import LogSettings
from services.shared.configuration.worker import ExtractorSettings
from services.shared.model.ending import end_on_signals
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.pictures import Picture
from services.shared.telemetry.logs import configure_logs
from speaker_registry.artifact import ComputedOn, TensorSpec
from speaker_registry.engine import Profile
from speaker_registry.errors import EncoderUnproven, InvalidAudio, WeightsMissing

MARK = 1000
"""The embedding's numbers after these are drawn anew for every attempt, as no GPU computes twice the same."""


@dataclass(frozen=True)
class Prepared:
    marks: np.ndarray
    frames: int


class LightExtractor:
    """Tensors of the profile's shapes, told from the clip: whoever knows the clip can check them."""

    batch_seconds = 0.0
    computed_on = ComputedOn(device="cpu", instruction_set="none")

    def __init__(self, profile: Profile, settings: ExtractorSettings) -> None:
        if os.environ.get("LIGHT_WORKER_LACKS") == profile.name:
            raise WeightsMissing(f"{profile.name}: model.safetensors missing")
        self.profile_name = profile.name
        self.fingerprint = identify(profile, settings)
        self._profile = profile
        self._pace = os.environ.get("LIGHT_WORKER_PACE")
        self._limit = os.environ.get("LIGHT_WORKER_LIMIT")
        self._encoded = 0
        self._warm = False
        self._fails = os.environ.get("LIGHT_WORKER_FAILS") == profile.name

    def prepare(self, clip: ReferenceAudio) -> Prepared:
        return Prepared(marks_of(clip.samples), math.ceil(clip.seconds * (self._profile.frame_rate or 1)))

    def encode(self, prepared: Sequence[Prepared]) -> list[Prepared]:
        if (lost := os.environ.get("LIGHT_WORKER_LOST")) and Path(lost).exists():
            raise DeviceLost("an illegal memory access was encountered")
        time.sleep(float(Path(self._pace).read_text()) * len(prepared) if self._pace else 0)
        warms_up = self._warming_up()
        if self._fails and not warms_up:
            time.sleep(0.5)
            raise InvalidAudio("this clip is not for me")
        if not warms_up:
            self._wait_until_allowed(len(prepared))
        return list(prepared)

    def _wait_until_allowed(self, clips: int) -> None:
        self._encoded += clips
        while self._limit and self._encoded > int(Path(self._limit).read_text()):
            time.sleep(0.05)

    def _warming_up(self) -> bool:
        first, self._warm = not self._warm, True
        return first

    def finish(self, encoded: Prepared) -> dict[str, np.ndarray]:
        return {name: self._tensor(spec, encoded) for name, spec in self._profile.tensors.items()}

    def used_seconds(self, _encoded: Prepared) -> float | None:
        return None

    def _tensor(self, spec: TensorSpec, encoded: Prepared) -> np.ndarray:
        """Codes are the lowest there are; numbers begin with the clip's marks."""
        sizes = {"T": encoded.frames, "2T": 2 * encoded.frames}
        shape = [size if isinstance(size, int) else sizes.get(size, 3) for size in spec.shape]
        if spec.dtype.startswith("I"):
            lowest = encoded.frames if spec.counts_frames else spec.minimum or 0
            return np.full(shape, lowest, {"I32": np.int32, "I64": np.int64}[spec.dtype])
        numbers = np.random.default_rng().standard_normal(math.prod(shape)).astype(np.float32)
        numbers[:MARK] = encoded.marks[: numbers.size]
        return numbers.reshape(shape)

    def example(self) -> ReferenceAudio:
        return ReferenceAudio(np.full(16_000, 0.1, np.float32), 16_000)


def identify(profile: Profile, settings: ExtractorSettings) -> Fingerprint:
    return Fingerprint.of(
        profile=profile.name,
        light=1,
        dtype=settings.dtype,
        weights={"untrained": settings.weights == "untrained"},
    )


def prove(extractor: LightExtractor, profile: Profile, settings: ExtractorSettings) -> float:
    """Nothing is computed here that could be wrong, but what a wrong device leads to can be seen."""
    if os.environ.get("LIGHT_WORKER_UNPROVEN") == profile.name:
        raise EncoderUnproven(f"{profile.name}: 12.00% of the codes are equal")
    return time.time()


def draw(clip: ReferenceAudio) -> dict[Picture, bytes]:
    """Pictures that show nothing but say which clip they are of."""
    mark = hashlib.sha256(clip.samples.astype(np.float32).tobytes()).hexdigest()
    return {picture: f"{picture} of {mark}".encode() for picture in Picture}


def marks_of(samples: np.ndarray) -> np.ndarray:
    """float32 [1000] that stand for a clip's samples and no others."""
    seed = hashlib.sha256(samples.astype(np.float32).tobytes()).digest()
    return np.random.default_rng(list(seed)).standard_normal(MARK).astype(np.float32)


def main() -> int:
    end_on_signals()
    os.environ.setdefault("SPEAKER_EXTRACTOR_WEIGHTS", "untrained")
    configure_logs(LogSettings().level)
    return WorkerProcess(identify, LightExtractor, prove, draw).run()


if __name__ == "__main__":
    sys.exit(main())
