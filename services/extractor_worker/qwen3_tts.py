"""What Qwen3-TTS needs of a voice: a speaker embedding and codes. Knows both encoders and their files.

Exact per clip: it gives the same artifact alone and among others, and, up to the order of float32 sums, what
the qwen-tts package computes from the same weights and 24 kHz samples (over 10 s: with the codec's window).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.extractor_worker.ecapa import SpeakerEncoder, SpeakerEncoderConfig
from services.extractor_worker.extractor import Dtype, Fingerprint
from services.extractor_worker.mel import MelSettings, log_mel
from services.extractor_worker.mimi import CodecConfig, CodecEncoder, codec_layout
from services.extractor_worker.precision import exact_float32
from services.extractor_worker.published import read_config
from services.extractor_worker.resample import KERNEL, resample
from services.extractor_worker.untrained import random_tensors
from services.extractor_worker.weights import Checkpoint, UntrainedWeights, WeightsSource, locate
from services.shared.audio import ReferenceAudio
from speaker_registry.errors import AudioTooShort, ExtractorOutOfMemory, WeightsInvalid

CODE_VERSION = 1
"""Part of the fingerprint. Raise it with every change, here or in what is imported, that changes a result."""

_CONFIG, _TENSORS = "config.json", "model.safetensors"
_CODEC_CONFIG, _CODEC_TENSORS = f"speech_tokenizer/{_CONFIG}", f"speech_tokenizer/{_TENSORS}"
_FILES = (_CONFIG, _TENSORS, _CODEC_CONFIG, _CODEC_TENSORS)

_ONLY_BASE = "a CustomVoice or VoiceDesign model, which has no speaker encoder; only Base models clone voices"
_SAMPLE_RATE = 24_000
_BOOKS = 16
"""Of the 32 books the published codec has."""
_DTYPES: Mapping[Dtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class PreparedClip:
    """mel: float32 [1, M, 128], M = floor(N / 256). samples: float32 [1, 1, N] at 24 kHz."""

    mel: Tensor
    samples: Tensor


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """embedding: [1, D] in the encoder's dtype. codes: int64 [1, 16, T]. Both still on the device."""

    embedding: Tensor
    codes: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    speaker: SpeakerEncoderConfig
    speaker_tensors: Mapping[str, Tensor]
    codec: CodecConfig
    codec_tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


class Qwen3TTSExtractor:
    """Encoders of one Qwen3-TTS 12Hz Base model, loaded and on their device.

    Args:
        profile_name: goes into the fingerprint; also the sub-folder of the weights, where there are several.
        source: where the weights come from.
        device: as torch names it.
        dtype: of both encoders. The mel spectrogram is float32 in any case.
        width: of the embedding, as the profile promises it: 1024 for 0.6B, 2048 for 1.7B.
        repo: the model's repository on the hub.
        revision: commit of it to use where `source` names none.

    Raises:
        WeightsMissing: naming the file and how to get it.
        WeightsInvalid: naming what is wrong with which file.
    """

    def __init__(
        self,
        profile_name: str,
        source: WeightsSource,
        device: str = "cpu",
        dtype: Dtype = "float32",
        *,
        width: int,
        repo: str,
        revision: str | None = None,
    ) -> None:
        if isinstance(source, UntrainedWeights):
            weights = _untrained(width, source.seed)
        else:
            weights = _published(
                locate(source, profile=profile_name, repo=repo, revision=revision, files=_FILES), width
            )
        self.profile_name = profile_name
        self.fingerprint = _fingerprint(profile_name, weights, dtype)
        self._device, self._dtype, self._mel = (
            torch.device(device),
            _DTYPES[dtype],
            _mel_settings(weights.speaker),
        )
        self._min_samples = weights.speaker.min_frames * self._mel.hop
        self._speaker_encoder = _speaker_encoder(weights).to(self._device, self._dtype)
        self._codec = CodecEncoder(
            weights.codec, weights.codec_tensors, books=_BOOKS, device=device, dtype=self._dtype
        )

    @torch.inference_mode()
    def prepare(self, clip: ReferenceAudio) -> PreparedClip:
        """Resample and compute the mel spectrogram.

        Raises:
            AudioTooShort: fewer samples than the speaker encoder can reflect.
        """
        rate = self._mel.sample_rate
        samples = resample(torch.tensor(clip.samples), clip.sample_rate, rate)  # [N]
        if len(samples) < self._min_samples:
            least = self._min_samples / rate
            raise AudioTooShort(f"the clip is {clip.seconds:.3f} s, the encoder needs at least {least:.3f} s")
        return PreparedClip(
            self._pinned(log_mel(samples[None], self._mel)), self._pinned(samples[None, None])
        )

    @torch.inference_mode()
    def encode(self, prepared: Sequence[PreparedClip]) -> list[EncodedClip]:
        """Embed and encode, one clip at a time: a padded batch would change both results."""
        try:
            with exact_float32(self._device):
                return [self._encode(clip) for clip in prepared]
        except torch.OutOfMemoryError as error:
            raise ExtractorOutOfMemory(
                f"the device has too little memory for {len(prepared)} clips"
            ) from error

    @torch.inference_mode()
    def finish(self, encoded: EncodedClip) -> dict[str, np.ndarray]:
        """`speaker_embedding`: float32 [width]. `ref_code`: int32 [T, 16], T = ceil(N / 1920), 0 … 2047."""
        embedding = encoded.embedding[0].float()  # [D]
        codes = encoded.codes[0].T.to(torch.int32).contiguous()  # [T, 16]
        return {"speaker_embedding": embedding.cpu().numpy(), "ref_code": codes.cpu().numpy()}

    def example(self) -> ReferenceAudio:
        """Three seconds of quiet noise, at a rate that has to be resampled."""
        noise = np.random.default_rng(0).uniform(-0.1, 0.1, 3 * 16_000)
        return ReferenceAudio(noise.astype(np.float32), 16_000)

    def _encode(self, clip: PreparedClip) -> EncodedClip:
        mel = clip.mel.to(self._device, self._dtype, non_blocking=True)
        samples = clip.samples.to(self._device, self._dtype, non_blocking=True)
        return EncodedClip(self._speaker_encoder(mel), self._codec.encode(samples))

    def _pinned(self, tensor: Tensor) -> Tensor:
        """Page-locked where a GPU will fetch it, so that the copy does not wait for the work before it."""
        return tensor.pin_memory() if self._device.type == "cuda" else tensor


def _published(checkpoint: Checkpoint, width: int) -> _Weights:
    speaker = _read_speaker_config(checkpoint, width)
    codec = _read_codec_config(checkpoint)
    return _Weights(
        speaker=speaker,
        speaker_tensors=checkpoint.read_tensors(
            _TENSORS, "speaker_encoder.", _speaker_layout(speaker), if_none=_ONLY_BASE
        ),
        codec=codec,
        codec_tensors=checkpoint.read_tensors(_CODEC_TENSORS, "encoder.", codec_layout(codec)),
        facts=checkpoint.facts((_TENSORS, _CODEC_TENSORS)),
    )


def _untrained(width: int, seed: int) -> _Weights:
    speaker, codec = SpeakerEncoderConfig(enc_dim=width), CodecConfig()
    return _Weights(
        speaker=speaker,
        speaker_tensors=random_tensors(_speaker_layout(speaker), seed),
        codec=codec,
        codec_tensors=random_tensors(codec_layout(codec), seed),
        facts={"untrained": True, "seed": seed},
    )


def _read_speaker_config(checkpoint: Checkpoint, width: int) -> SpeakerEncoderConfig:
    published = checkpoint.read_json(_CONFIG)
    _expect(_CONFIG, published, "model_type", "qwen3_tts")
    _expect(_CONFIG, published, "tts_model_type", "base", why=f": this is {_ONLY_BASE}")
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
    _expect(_CODEC_CONFIG, published, "model_type", "qwen3_tts_tokenizer_12hz")
    _expect(_CODEC_CONFIG, published, "input_sample_rate", _SAMPLE_RATE)
    _expect(_CODEC_CONFIG, published, "encoder_valid_num_quantizers", _BOOKS)
    config = read_config(CodecConfig, published.get("encoder_config"), f"{_CODEC_CONFIG}: encoder_config")
    _expect(_CODEC_CONFIG, published, "encode_downsample_rate", config.samples_per_frame)
    return config


def _expect(where: str, published: Mapping[str, Any], key: str, value: object, why: str = "") -> None:
    if published.get(key) != value:
        raise WeightsInvalid(f"{where}: {key} is {published.get(key)!r:.80}, {value!r} is expected{why}")


def _speaker_layout(config: SpeakerEncoderConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        shapes = SpeakerEncoder(config).state_dict()
    return {key: tuple(tensor.shape) for key, tensor in shapes.items()}


def _speaker_encoder(weights: _Weights) -> SpeakerEncoder:
    with torch.device("meta"):
        encoder = SpeakerEncoder(weights.speaker)
    encoder.load_state_dict(weights.speaker_tensors, strict=True, assign=True)
    return encoder.eval().requires_grad_(False)


def _mel_settings(config: SpeakerEncoderConfig) -> MelSettings:
    return MelSettings(sample_rate=config.sample_rate, bands=config.mel_dim)


def _fingerprint(profile_name: str, weights: _Weights, dtype: Dtype) -> Fingerprint:
    return Fingerprint.of(
        profile=profile_name,
        code=CODE_VERSION,
        weights=weights.facts,
        dtype=dtype,
        resampler=KERNEL,
        mel=asdict(_mel_settings(weights.speaker)),
        speaker_encoder=asdict(weights.speaker),
        codec=asdict(weights.codec) | {"books": _BOOKS, "sliding_window_applied": True},
    )
