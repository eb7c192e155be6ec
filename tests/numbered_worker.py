"""A light worker whose artifacts tell the number of their clip, for tests with `tests/tts_server.py`."""

import sys

import numpy as np

from services.extractor_worker.process import WorkerProcess
from services.shared.audio import ReferenceAudio
from services.shared.configuration.telemetry import LogSettings
from services.shared.telemetry.logs import configure_logs
from tests.light_worker import MARK, LightExtractor, Prepared, draw, identify, prove
from tests.tts_server import number_of_samples


class NumberedExtractor(LightExtractor):
    def prepare(self, clip: ReferenceAudio) -> Prepared:
        number = number_of_samples(round(clip.seconds * 8_000))
        return Prepared(np.full(MARK, number, np.float32), super().prepare(clip).frames)


if __name__ == "__main__":
    configure_logs(LogSettings().level)
    sys.exit(WorkerProcess(identify, NumberedExtractor, prove, draw).run())
