"""Loads and proves the extractors of the catalogue. This module imports torch, which takes seconds."""

from dataclasses import replace
from functools import partial

import torch

from services.extractor_worker.device.device_memory import show_device_memory
from services.extractor_worker.device.machine import machine_description
from services.extractor_worker.engines.catalogue import fingerprint_of, load_extractor
from services.extractor_worker.pipeline.extractor import Extractor
from services.extractor_worker.pipeline.proof import KeptProofs, prove_once
from services.extractor_worker.pipeline.torch_extractor import Loading, SharedModels
from services.extractor_worker.weights.loading import parse_weights
from services.shared.configuration.worker import ExtractorSettings
from services.shared.model.fingerprint import Fingerprint
from speaker_registry.engine import Profile


class Encoders:
    """The encoders of one process on one device, whose memory the metrics report from now on."""

    def __init__(self, device: str) -> None:
        self._shared_models = SharedModels()
        show_device_memory(torch.device(device))

    def identify(self, profile: Profile, settings: ExtractorSettings) -> Fingerprint | None:
        """Return the fingerprint of a profile's extractor without loading it, see `fingerprint_of`."""
        return fingerprint_of(_loading(SharedModels(), profile, settings))

    def load(self, profile: Profile, settings: ExtractorSettings) -> Extractor:
        return load_extractor(_loading(self._shared_models, profile, settings))

    def prove(self, extractor: Extractor, profile: Profile, settings: ExtractorSettings) -> float:
        """Prove that an extractor computes correctly, unless a proof is remembered. Returns when it was made,
        in Unix seconds. Raises EncoderUnproven.
        """
        trusted = replace(
            _loading(SharedModels(), profile, settings), device="cpu", dtype="float32", trusted=True
        )
        return prove_once(
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
        shared_models=shared_models,
    )
