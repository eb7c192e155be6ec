"""The extractor for Qwen3-TTS. It makes a speaker embedding and codes.

In float32 both are what the qwen-tts package computes from the same weights and 24 kHz samples; for clips
over 10 s, what it computes with the codec's sliding window applied. In bfloat16 both are what vLLM-Omni
computes.

A clip's codes do not depend on the other clips of a batch. On a GPU, the embeddings of a batch are computed
together, and sums are made in another order. At the published size with random weights, embeddings have
values up to 80. Batches moved them by up to 1.4e-4 in float32, where single clips have errors of 8e-5, and by
up to 1.0 in bfloat16, where single clips have errors of 0.6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.extractor_worker.device.libraries import library_versions
from services.extractor_worker.features.mel import MelSettings, log_mel
from services.extractor_worker.models.ecapa import SpeakerEncoder, SpeakerEncoderConfig
from services.extractor_worker.models.mimi import CodecConfig, CodecEncoder, codec_layout
from services.extractor_worker.pipeline.torch_extractor import (
    Loading,
    TorchExtractor,
    untrained_inputs,
    weights_identity,
)
from services.extractor_worker.weights.loading import Checkpoint
from services.extractor_worker.weights.modules import filled, layout_of
from services.extractor_worker.weights.published import expect, read_config
from services.extractor_worker.weights.untrained import random_tensors
from services.shared.audio import ReferenceAudio
from speaker_registry.engine import Dtype
from speaker_registry.errors import WeightsInvalid

_CONFIG, _TENSORS = "config.json", "model.safetensors"
_CODEC_CONFIG, _CODEC_TENSORS = f"speech_tokenizer/{_CONFIG}", f"speech_tokenizer/{_TENSORS}"

_NOT_A_BASE_MODEL = (
    "a CustomVoice or VoiceDesign model, which has no speaker encoder; only Base models clone voices"
)
_SAMPLE_RATE = 24_000
_CODEBOOKS = 16
"""The number of codebooks that are used. The published codec has 32."""


@dataclass(frozen=True, slots=True)
class PreparedClip:
    """The prepared clip. mel: float32 [1, M, 128], M = floor(N / 256). samples: float32 [1, 1, N] at 24
    kHz.
    """

    mel: Tensor
    samples: Tensor


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """The encoded clip, on the device. embedding: [1, D] in the encoder's dtype. codes: int64 [1, 16, T]."""

    embedding: Tensor
    codes: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    speaker: SpeakerEncoderConfig
    speaker_tensors: Mapping[str, Tensor]
    codec: CodecConfig
    codec_tensors: Mapping[str, Tensor]
    fingerprint_inputs: Mapping[str, Any]


class Qwen3TTSExtractor(TorchExtractor[PreparedClip, EncodedClip]):
    """The two encoders of one Qwen3-TTS 12Hz Base model, on their device."""

    code_version = 1
    gpu_batch_seconds = 120.0

    def __init__(self, loading: Loading) -> None:
        width = loading.profile.embedding_width
        assert width, "the profile says how wide the embedding is"
        weights = _weights(loading, width)
        self._mel = _mel_settings(weights.speaker)
        super().__init__(
            loading,
            weights=weights.fingerprint_inputs,
            mel=asdict(self._mel),
            speaker_encoder=asdict(weights.speaker),
            codec=asdict(weights.codec) | _codec_inputs(loading.dtype),
            libraries=library_versions("transformers"),
        )
        self._min_samples = weights.speaker.min_frames * self._mel.hop
        encoder = filled(partial(SpeakerEncoder, weights.speaker), weights.speaker_tensors)
        self._speaker_encoder = encoder.to(self.device, self.dtype)
        codec_identity = weights_identity(weights.fingerprint_inputs, _CODEC_TENSORS)
        self._codec = loading.shared_models.get(
            ("mimi", weights.codec, codec_identity, loading.device, self.dtype),
            lambda: CodecEncoder(
                weights.codec,
                weights.codec_tensors,
                codebooks=_CODEBOOKS,
                device=loading.device,
                dtype=self.dtype,
            ),
        )

    def _prepare(self, clip: ReferenceAudio) -> PreparedClip:
        samples = self.resampled(clip, self._mel.sample_rate, min_samples=self._min_samples)
        return PreparedClip(self.pinned(log_mel(samples[None], self._mel)), self.pinned(samples[None, None]))

    def _encode(self, prepared: PreparedClip) -> EncodedClip:
        embedding = self._speaker_encoder(self.on_device(prepared.mel))
        return EncodedClip(embedding, self._codes(prepared))

    def _encode_all(self, prepared: Sequence[PreparedClip]) -> list[EncodedClip]:
        """Compute the embeddings in one batch, and the codes of one clip at a time.

        A batch changes embeddings by rounding errors only. It would change codes, because the last frame of a
        clip depends on the samples that follow it.
        """
        if len(prepared) == 1:
            return [self._encode(prepared[0])]
        frames = torch.tensor([clip.mel.shape[1] for clip in prepared])
        mel = pad_sequence([clip.mel[0] for clip in prepared], batch_first=True)  # [B, M, 128]
        embeddings = self._speaker_encoder(
            self.on_device(self.pinned(mel)), self.on_device(self.pinned(frames), frames.dtype)
        )
        return [
            EncodedClip(embedding[None], self._codes(clip))
            for embedding, clip in zip(embeddings, prepared, strict=True)
        ]

    def _codes(self, prepared: PreparedClip) -> Tensor:
        return self._codec.encode(self.on_device(prepared.samples))

    def _finish(self, encoded: EncodedClip) -> dict[str, Tensor]:
        """Return `speaker_embedding`: float32 [width], and `ref_code`: int32 [T, 16], T = ceil(N / 1920).

        The codes have values 0 … 2047.
        """
        return {
            "speaker_embedding": encoded.embedding[0].float(),  # [D]
            "ref_code": encoded.codes[0].T.to(torch.int32),  # [T, 16]
        }


def _codec_inputs(dtype: Dtype) -> dict[str, Any]:
    """Return the fingerprint inputs that this module decides about the codec.

    `rotary_frequencies` appears only where rounding them changes codes, so that float32 artifacts keep the
    fingerprints that they had before it was added.
    """
    fingerprint_inputs: dict[str, Any] = {"books": _CODEBOOKS, "sliding_window_applied": True}
    return fingerprint_inputs if dtype == "float32" else fingerprint_inputs | {"rotary_frequencies": dtype}


def _weights(loading: Loading, width: int) -> _Weights:
    if loading.seed is not None:
        speaker, codec = SpeakerEncoderConfig(enc_dim=width), CodecConfig()
        inputs = untrained_inputs(loading.seed)
        speaker_tensors = random_tensors(layout_of(partial(SpeakerEncoder, speaker)), loading.seed)
        codec_tensors = random_tensors(codec_layout(codec), loading.seed)
    else:
        checkpoint = loading.checkpoint()
        speaker, codec = _read_speaker_config(checkpoint, width), _read_codec_config(checkpoint)
        inputs = checkpoint.fingerprint_inputs([_TENSORS, _CODEC_TENSORS])
        speaker_tensors = checkpoint.read_tensors(
            _TENSORS,
            "speaker_encoder.",
            layout_of(partial(SpeakerEncoder, speaker)),
            if_none=_NOT_A_BASE_MODEL,
        )
        codec_tensors = checkpoint.read_tensors(_CODEC_TENSORS, "encoder.", codec_layout(codec))
    return _Weights(
        speaker=speaker,
        speaker_tensors=speaker_tensors,
        codec=codec,
        codec_tensors=codec_tensors,
        fingerprint_inputs=inputs,
    )


def _read_speaker_config(checkpoint: Checkpoint, width: int) -> SpeakerEncoderConfig:
    published = checkpoint.read_json(_CONFIG)
    expect(_CONFIG, published, "model_type", "qwen3_tts")
    expect(_CONFIG, published, "tts_model_type", "base", why=f": this is {_NOT_A_BASE_MODEL}")
    config = read_config(
        SpeakerEncoderConfig, published.get("speaker_encoder_config"), f"{_CONFIG}: speaker_encoder_config"
    )
    if config.enc_dim != width:
        raise WeightsInvalid(f"{_CONFIG}: the embedding is {config.enc_dim} wide, this profile's is {width}")
    if config.sample_rate != _SAMPLE_RATE:
        raise WeightsInvalid(
            f"{_CONFIG}: the encoder takes {config.sample_rate} Hz, {_SAMPLE_RATE} is expected"
        )
    return config


def _read_codec_config(checkpoint: Checkpoint) -> CodecConfig:
    published = checkpoint.read_json(_CODEC_CONFIG)
    expect(_CODEC_CONFIG, published, "model_type", "qwen3_tts_tokenizer_12hz")
    expect(_CODEC_CONFIG, published, "input_sample_rate", _SAMPLE_RATE)
    expect(_CODEC_CONFIG, published, "encoder_valid_num_quantizers", _CODEBOOKS)
    config = read_config(CodecConfig, published.get("encoder_config"), f"{_CODEC_CONFIG}: encoder_config")
    expect(_CODEC_CONFIG, published, "encode_downsample_rate", config.samples_per_frame)
    return config


def _mel_settings(config: SpeakerEncoderConfig) -> MelSettings:
    return MelSettings(sample_rate=config.sample_rate, bands=config.mel_dim)
