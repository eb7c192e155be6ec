"""A worker process with the extractors of the catalogue, put together from the environment's settings."""

from dataclasses import replace
from functools import partial

import structlog
import torch
from pydantic import ValidationError

from services.extractor_worker.device.device_memory import show_device_memory
from services.extractor_worker.device.host_memory import keep_freed_memory
from services.extractor_worker.device.machine import machine_description
from services.extractor_worker.engines.catalogue import load_extractor
from services.extractor_worker.features.pictures import draw
from services.extractor_worker.pipeline.extractor import Extractor
from services.extractor_worker.pipeline.proof import KeptProofs, prove_once
from services.extractor_worker.pipeline.torch_extractor import Loading, SharedModels
from services.extractor_worker.process import WorkerProcess
from services.extractor_worker.weights.loading import parse_weights
from services.shared.bucket.connection import StoreUnfit
from services.shared.configuration.explanation import explain
from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.configuration.settings import ExtractorSettings, LogSettings
from services.shared.telemetry.logs import configure_logs
from services.shared.telemetry.metrics import CannotListen
from services.shared.telemetry.trace_export import TracesUnavailable
from speaker_registry.engine import Profile
from speaker_registry.errors import SpeakerRegistryError

log = structlog.get_logger()


def work() -> int:
    """Work until told to stop. Returns the exit status: 1 if models or settings are wrong, else the
    worker's.
    """
    configure_logs()
    try:
        configure_logs(LogSettings().level)
        warn_of_unknown_variables()
        device = ExtractorSettings().device
        if device == "cpu":
            keep_freed_memory()
        show_device_memory(torch.device(device))
        return WorkerProcess(partial(_load, SharedModels()), _prove, draw).run()
    except ValidationError as error:
        log.error("worker.cannot_start", reason=explain(error))
    except (SpeakerRegistryError, StoreUnfit, CannotListen, TracesUnavailable) as error:
        log.error("worker.cannot_start", reason=str(error))
    return 1


def _load(shared_models: SharedModels, profile: Profile, settings: ExtractorSettings) -> Extractor:
    return load_extractor(_loading(shared_models, profile, settings))


def _prove(extractor: Extractor, profile: Profile, settings: ExtractorSettings) -> None:
    """Raises EncoderUnproven."""
    trusted = replace(
        _loading(SharedModels(), profile, settings), device="cpu", dtype="float32", trusted=True
    )
    prove_once(
        extractor,
        partial(load_extractor, trusted),
        profile.tensors,
        machine=machine_description(torch.device(settings.device)),
        kept=KeptProofs(settings.cache.expanduser() / "proofs"),
    )


def _loading(shared_models: SharedModels, profile: Profile, settings: ExtractorSettings) -> Loading:
    return Loading(
        profile=profile,
        source=parse_weights(settings.weights, custom=profile.name in settings.custom_weights),
        device=settings.device,
        dtype=settings.dtype,
        cache=settings.cache,
        shared_models=shared_models,
    )
