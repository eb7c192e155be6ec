"""The extractor for CosyVoice3. It makes speech tokens, their mel spectrogram and a speaker embedding.

Clips are prepared as in vLLM-Omni: resampled to 24 kHz, and from there to 16 kHz, by scipy's polyphase filter
for the tokens and by the usual kernel for the embedding. CosyVoice's own scripts resample each branch from
the clip's own rate instead. The tokens equal vLLM-Omni's. It builds its mel bands in float32, so that its
`speech_feat` differs by up to 2e-5.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.signal
import torch
from torch import Tensor

from services.extractor_worker.device.libraries import library_versions
from services.extractor_worker.features.mel import MelSettings, WhisperMelSettings, log_mel, whisper_log_mel
from services.extractor_worker.features.resample import resample
from services.extractor_worker.models.campplus import (
    CAMPPLUS_FILE,
    FBANK,
    MIN_SAMPLES,
    Embedding,
    campplus_inputs,
    load_campplus,
)
from services.extractor_worker.models.s3_tokenizer import (
    S3Config,
    load_s3_tokenizer,
    read_s3_tokenizer,
    s3_layout,
)
from services.extractor_worker.pipeline.torch_extractor import (
    Loading,
    TorchExtractor,
    untrained_inputs,
    weights_identity,
)
from services.extractor_worker.weights.loading import Checkpoint
from services.extractor_worker.weights.untrained import random_tensors
from services.shared.audio import ReferenceAudio
from speaker_registry.errors import AudioTooLong

_TOKENIZER_FILE = "speech_tokenizer_v3.onnx"
_SAMPLE_RATE = 24_000
_MEL = MelSettings(sample_rate=_SAMPLE_RATE, window=1920, hop=480, bands=80, highest_hertz=12_000.0)
"""The mel bands reach the highest frequency at 24 kHz. Those of CosyVoice2 stopped at 8 kHz."""
_TOKEN_MEL = WhisperMelSettings()
_UP, _DOWN = 2, 3
"""The factors of the polyphase filter that resamples from 24 kHz to 16 kHz."""
_MEL_FRAMES_PER_TOKEN = 2


@dataclass(frozen=True, slots=True)
class PreparedClip:
    """The inputs of the tokenizer, and what was computed on the CPU.

    token_mel: float32 [1, 128, M]. speech_feat: float32 [1, F, 80]. embedding: float32 [192].
    """

    token_mel: Tensor
    speech_feat: Tensor
    embedding: Embedding


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """The encoded clip. codes: int64 [1, T], on the device. speech_feat and embedding: as in
    `PreparedClip`.
    """

    codes: Tensor
    speech_feat: Tensor
    embedding: Embedding


class CosyVoice3Extractor(TorchExtractor[PreparedClip, EncodedClip]):
    """The tokenizer and the speaker encoder. Both run in float32, as in the engine, on one clip at a time.

    Args:
        tokenizer: the tokenizer's architecture, which the published file lacks. Only tests pass another one.
    """

    code_version = 1
    always_float32 = True

    def __init__(self, loading: Loading, tokenizer: S3Config | None = None) -> None:
        tokenizer = tokenizer or S3Config()
        checkpoint = loading.checkpoint() if loading.seed is None else None
        weights = _weights_inputs(checkpoint, loading)
        super().__init__(
            loading,
            weights=weights,
            tokenizer=asdict(tokenizer),
            token_mel=asdict(_TOKEN_MEL),
            token_resampler=f"scipy-resample-poly-{_UP}-{_DOWN}",
            speech_feat=asdict(_MEL) | {"frames_per_token": _MEL_FRAMES_PER_TOKEN},
            speaker_encoder=campplus_inputs(),
            libraries=library_versions("scipy"),
        )
        self._max_samples = tokenizer.max_frames * _TOKEN_MEL.hop * _DOWN // _UP
        identity = weights_identity(weights, _TOKENIZER_FILE)
        self._tokenizer = loading.shared_models.get(
            ("s3-tokenizer", tokenizer, identity, loading.device),
            lambda: load_s3_tokenizer(
                tokenizer, _tokenizer_tensors(checkpoint, loading, tokenizer), loading.device
            ),
        )
        self._speaker_encoder = load_campplus(loading, checkpoint)

    def _prepare(self, clip: ReferenceAudio) -> PreparedClip:
        samples = self.resampled(clip, _SAMPLE_RATE, min_samples=_min_samples())
        if len(samples) > self._max_samples:
            longest = self._max_samples / _SAMPLE_RATE
            raise AudioTooLong(f"the clip is {clip.seconds:.3f} s, the encoder takes at most {longest:.0f} s")
        token_mel = whisper_log_mel(_at_token_rate(samples), _TOKEN_MEL)  # [128, M]
        return PreparedClip(
            token_mel=self.pinned(token_mel[None]),
            speech_feat=log_mel(samples[None], _MEL),
            embedding=self._speaker_encoder(resample(samples, _SAMPLE_RATE, FBANK.sample_rate)),
        )

    def _encode(self, prepared: PreparedClip) -> EncodedClip:
        codes = self._tokenizer(self.on_device(prepared.token_mel))
        return EncodedClip(codes, prepared.speech_feat, prepared.embedding)

    def _finish(self, encoded: EncodedClip) -> dict[str, Tensor]:
        """Cut tokens and mel frames to the same duration, two frames for each token.

        `speech_token`: int32 [1, T], 0 … 6560, 25 a second. `speech_token_len`: int32 [1], T. `speech_feat`:
        float32 [1, 2 * T, 80]. `embedding`: float32 [1, 192], not normalised.
        """
        frames = encoded.speech_feat.shape[1]
        tokens = min(frames // _MEL_FRAMES_PER_TOKEN, encoded.codes.shape[1])
        return {
            "speech_token": encoded.codes[:, :tokens].to(torch.int32),
            "speech_token_len": torch.tensor([tokens], dtype=torch.int32),
            "speech_feat": encoded.speech_feat[:, : _MEL_FRAMES_PER_TOKEN * tokens],
            "embedding": torch.from_numpy(encoded.embedding)[None],
        }


def _min_samples() -> int:
    """Return the fewest samples at 24 kHz that all encoders accept.

    The speaker encoder needs the most: more than the mel spectrogram reflects, and enough for one token.
    """
    return -(-MIN_SAMPLES * _DOWN // _UP)


def _at_token_rate(samples: Tensor) -> Tensor:
    """Resample float32 [N] at 24 kHz to float32 [ceil(2 * N / 3)] at 16 kHz."""
    resampled = scipy.signal.resample_poly(samples.numpy(), _UP, _DOWN)
    return torch.from_numpy(resampled.astype(np.float32))


def _weights_inputs(checkpoint: Checkpoint | None, loading: Loading) -> Mapping[str, Any]:
    if checkpoint is None:
        return untrained_inputs(loading.seed or 0)
    return checkpoint.fingerprint_inputs([_TOKENIZER_FILE, CAMPPLUS_FILE])


def _tokenizer_tensors(
    checkpoint: Checkpoint | None, loading: Loading, config: S3Config
) -> Mapping[str, Tensor]:
    if checkpoint is None:
        return random_tensors(s3_layout(config), loading.seed or 0)
    return read_s3_tokenizer(checkpoint, _TOKENIZER_FILE, config)
