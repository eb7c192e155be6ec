"""The extractor for Ming-TTS. It makes a speaker embedding (CAM++) and reads only that encoder's file.

The engine resamples from the clip's own rate in one step. For a clip with a transcript it also computes
latents. The artifact has none, because the engine cannot be given any.
"""

import torch
from torch import Tensor

from services.extractor_worker.models.campplus import (
    CAMPPLUS_FILE,
    FBANK,
    MIN_SAMPLES,
    Embedding,
    campplus_inputs,
    load_campplus,
)
from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor, untrained_inputs
from services.shared.audio import ReferenceAudio


class MingTTSExtractor(TorchExtractor[Embedding, Embedding]):
    """The speaker encoder CAM++, in float32, as in the engine.

    Clips are encoded one at a time: padding would change the context that CAM++ computes.
    """

    code_version = 1
    always_float32 = True

    def __init__(self, loading: Loading) -> None:
        checkpoint = loading.checkpoint() if loading.seed is None else None
        weights = (
            checkpoint.fingerprint_inputs([CAMPPLUS_FILE])
            if checkpoint
            else untrained_inputs(loading.seed or 0)
        )
        super().__init__(loading, weights=weights, speaker_encoder=campplus_inputs())
        self._speaker_encoder = load_campplus(loading, checkpoint)

    def _prepare(self, clip: ReferenceAudio) -> Embedding:
        """Compute the embedding: float32 [192]. CAM++ runs on the CPU, so nothing is left for the device."""
        return self._speaker_encoder(self.resampled(clip, FBANK.sample_rate, min_samples=MIN_SAMPLES))

    def _encode(self, prepared: Embedding) -> Embedding:
        return prepared

    def _finish(self, encoded: Embedding) -> dict[str, Tensor]:
        """Return `speaker_embedding`: float32 [192], not normalised."""
        return {"speaker_embedding": torch.from_numpy(encoded)}
