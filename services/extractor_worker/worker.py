"""A worker process with the extractors of the catalogue, put together from the environment's settings.

torch is imported only when the fingerprint of the first extractor is computed. By then the settings were read
and the bucket was opened, so faults there are reported at once.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import structlog
from pydantic import ValidationError

from services.extractor_worker.device.host_memory import keep_freed_memory
from services.extractor_worker.pipeline.extractor import Extractor
from services.extractor_worker.process import WorkerProcess
from services.shared.audio import ReferenceAudio
from services.shared.bucket.connection import StoreUnfit
from services.shared.configuration.explanation import explain
from services.shared.configuration.listening import CannotListen
from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.configuration.telemetry import LogSettings
from services.shared.configuration.worker import ExtractorSettings
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.pictures import Picture
from services.shared.telemetry.logs import configure_logs
from services.shared.telemetry.trace_export import TracesUnavailable
from speaker_registry.engine import Profile
from speaker_registry.errors import SpeakerRegistryError

if TYPE_CHECKING:
    from services.extractor_worker.encoders import Encoders

log = structlog.get_logger()


def work() -> int:
    """Run a worker until it is told to stop. Returns the exit status: 1 if models or settings are wrong, else
    that of the worker.
    """
    configure_logs()
    try:
        configure_logs(LogSettings().level)
        warn_of_unknown_variables()
        if ExtractorSettings().device == "cpu":
            keep_freed_memory()
        return WorkerProcess(_identify, _load, _prove, _draw).run()
    except ValidationError as error:
        log.error("worker.cannot_start", reason=explain(error))
    except (SpeakerRegistryError, StoreUnfit, CannotListen, TracesUnavailable) as error:
        log.error("worker.cannot_start", reason=str(error))
    return 1


@cache
def _encoders(device: str) -> "Encoders":
    from services.extractor_worker.encoders import Encoders  # noqa: PLC0415  imports torch

    return Encoders(device)


def _identify(profile: Profile, settings: ExtractorSettings) -> Fingerprint | None:
    return _encoders(settings.device).identify(profile, settings)


def _load(profile: Profile, settings: ExtractorSettings) -> Extractor:
    return _encoders(settings.device).load(profile, settings)


def _prove(extractor: Extractor, profile: Profile, settings: ExtractorSettings) -> float:
    """Prove that an extractor computes correctly on its device. Returns when it was proven, in Unix seconds.
    Raises EncoderUnproven.
    """
    return _encoders(settings.device).prove(extractor, profile, settings)


def _draw(clip: ReferenceAudio) -> Mapping[Picture, bytes]:
    from services.extractor_worker.features.pictures import draw  # noqa: PLC0415  few workers draw soon

    return draw(clip)
