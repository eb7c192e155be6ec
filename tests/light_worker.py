"""A worker process whose extractor computes next to nothing, so that what is around it can be tested and
measured: settings, bucket, queue, leases, announcements and publishing are real. Never imports torch.

`LIGHT_WORKER_PACE` names a file that says how many seconds a clip takes; without it, none.
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

from services.extractor_worker.extractor import Fingerprint
from services.extractor_worker.process import WorkerProcess
from services.shared.audio import ReferenceAudio
from services.shared.logs import configure_logs
from services.shared.profiles import Profile
from services.shared.settings import ExtractorSettings, LogSettings

MARK = 1000
"""The embedding's numbers after these are drawn anew for every attempt, as no GPU computes twice the same."""


@dataclass(frozen=True)
class Prepared:
    marks: np.ndarray
    frames: int


class LightExtractor:
    """Tensors of the profile's shapes, told from the clip: whoever knows the clip can check them."""

    batch_seconds = 0.0

    def __init__(self, profile: Profile, _settings: ExtractorSettings) -> None:
        self.profile_name = profile.name
        self.fingerprint = Fingerprint.of(profile=profile.name, light=1, weights={"untrained": True})
        self._profile = profile
        self._pace = os.environ.get("LIGHT_WORKER_PACE")

    def prepare(self, clip: ReferenceAudio) -> Prepared:
        return Prepared(marks_of(clip.samples), math.ceil(clip.seconds * (self._profile.frame_rate or 1)))

    def encode(self, prepared: Sequence[Prepared]) -> list[Prepared]:
        time.sleep(float(Path(self._pace).read_text()) * len(prepared) if self._pace else 0)
        return list(prepared)

    def finish(self, encoded: Prepared) -> dict[str, np.ndarray]:
        embedding = np.random.default_rng().standard_normal(self._profile.embedding_width or 0)
        embedding[:MARK] = encoded.marks
        codes = np.zeros((encoded.frames, 16), np.int32)
        return {"speaker_embedding": embedding.astype(np.float32), "ref_code": codes}

    def example(self) -> ReferenceAudio:
        return ReferenceAudio(np.full(16_000, 0.1, np.float32), 16_000)


def marks_of(samples: np.ndarray) -> np.ndarray:
    """float32 [1000] that stand for a clip's samples and no others."""
    seed = hashlib.sha256(samples.astype(np.float32).tobytes()).digest()
    return np.random.default_rng(list(seed)).standard_normal(MARK).astype(np.float32)


def main() -> int:
    configure_logs(LogSettings().level)
    return WorkerProcess(LightExtractor).run()


if __name__ == "__main__":
    sys.exit(main())
