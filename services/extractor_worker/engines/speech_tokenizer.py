"""The extractor of SpeechTokenizer's codes, whose first codebook is semantic (arXiv 2308.16692).

The codes are those that `encode` of the speechtokenizer package gives for one clip of 16 kHz samples. The
decoder and the tensors that only training needs are not used.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from services.extractor_worker.features.resample import KERNEL_FLOAT32
from services.extractor_worker.models.nearest import nearest_entries
from services.extractor_worker.models.seanet import SeanetConfig, SeanetEncoder, published_name
from services.extractor_worker.models.weight_norm import folded, published_layout
from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor, untrained_inputs
from services.extractor_worker.weights.loading import Checkpoint
from services.extractor_worker.weights.modules import Layout, filled, layout_of
from services.extractor_worker.weights.published import expect, read_config
from services.extractor_worker.weights.untrained import random_tensors
from services.shared.audio import ReferenceAudio
from speaker_registry.engine import Profile
from speaker_registry.errors import WeightsInvalid

_Tensors = dict[str, Tensor]
_PARTS = ("encoder.", "quantizer.")
_FOLDER = "speechtokenizer_hubert_avg"
_CONFIG, _TENSORS = f"{_FOLDER}/config.json", f"{_FOLDER}/SpeechTokenizer.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Codebooks:
    """The number of codebooks (`count`), and the number of entries in each (`size`)."""

    count: int
    size: int

    @classmethod
    def of(cls, profile: Profile) -> Self:
        codes = profile.tensors["codes"]
        count, last = codes.shape[0], codes.maximum
        assert isinstance(count, int), "the profile says how many codebooks there are"
        assert last is not None, "the profile says how many entries the codebooks have"
        return cls(count=count, size=int(last) + 1)

    def keys(self) -> list[str]:
        return [f"vq.layers.{book}._codebook.embed" for book in range(self.count)]

    def layout(self, width: int) -> Layout:
        return dict.fromkeys(self.keys(), (self.size, width))

    def published_layout(self, width: int) -> Layout:
        """Include the tensors that only training needs: the running sums that the entries were made from."""
        layout: dict[str, tuple[int, ...]] = {}
        for key in self.keys():
            codebook = key.removesuffix("embed")
            layout |= {f"{codebook}inited": (1,), f"{codebook}cluster_size": (self.size,)}
            layout |= {f"{codebook}embed_avg": (self.size, width), key: (self.size, width)}
        return layout

    def stacked(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return all codebooks: float32 [count, size, D]."""
        return torch.stack([tensors[key] for key in self.keys()])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    config: SeanetConfig
    encoder: Mapping[str, Tensor]
    books: Tensor
    fingerprint_inputs: Mapping[str, Any]


class SpeechTokenizerExtractor(TorchExtractor[Tensor, Tensor]):
    """SpeechTokenizer's encoder and codebooks, on their device.

    Clips are encoded one at a time: the LSTM runs in both directions, so padding changes every frame.
    """

    code_version = 1
    always_float32 = True
    resampler = KERNEL_FLOAT32

    def __init__(self, loading: Loading) -> None:
        profile, books = loading.profile, _Codebooks.of(loading.profile)
        weights = _weights(loading, books)
        super().__init__(
            loading,
            weights=weights.fingerprint_inputs,
            sample_rate=profile.sample_rate,
            encoder=asdict(weights.config),
            quantizer=asdict(books),
        )
        self._sample_rate, self._min_samples = profile.sample_rate, weights.config.min_samples
        self._encoder = filled(partial(SeanetEncoder, weights.config), weights.encoder).to(self.device)
        self._books = weights.books.to(self.device)

    def _prepare(self, clip: ReferenceAudio) -> Tensor:
        """Return float32 [1, 1, N] at 16 kHz."""
        return self.pinned(self.resampled(clip, self._sample_rate, min_samples=self._min_samples)[None, None])

    def _encode(self, prepared: Tensor) -> Tensor:
        """Return int64 [codebooks, T], on the device."""
        latents = self._encoder(self.on_device(prepared))[0]  # [D, T]
        return quantized(latents.T, self._books)

    def _finish(self, encoded: Tensor) -> dict[str, Tensor]:
        """Return `codes`: int64 [8, T], T = ceil(N / 320), with values 0 … 1023."""
        return {"codes": encoded}


def quantized(latents: Tensor, books: Tensor) -> Tensor:
    """Quantise each residual: every codebook codes what the codebooks before it left over.

    Args:
        latents: float32 [T, D].
        books: float32 [B, size, D].

    Returns:
        int64 [B, T].
    """
    codes, rest = [], latents
    for book in books:
        code = nearest_entries(rest, book)  # [T]
        rest = rest - functional.embedding(code, book)  # [T, D]
        codes.append(code)
    return torch.stack(codes)


def _weights(loading: Loading, books: _Codebooks) -> _Weights:
    if loading.seed is not None:
        config, inputs = SeanetConfig(), untrained_inputs(loading.seed)
        encoder = random_tensors(layout_of(partial(SeanetEncoder, config)), loading.seed)
        entries = random_tensors(books.layout(config.dimension), loading.seed)
    else:
        checkpoint = loading.checkpoint()
        config = _read_config(checkpoint, loading.profile, books)
        inputs = checkpoint.fingerprint_inputs([_TENSORS])
        layout = layout_of(partial(SeanetEncoder, config))
        published, entries = _published(checkpoint, layout, books.published_layout(config.dimension))
        encoder = folded(published, layout, published_name)
    return _Weights(config=config, encoder=encoder, books=books.stacked(entries), fingerprint_inputs=inputs)


def _published(checkpoint: Checkpoint, encoder: Layout, books: Layout) -> tuple[_Tensors, _Tensors]:
    """Return the published tensors of the encoder and of the codebooks."""
    layout = {f"encoder.{key}": shape for key, shape in published_layout(encoder, published_name).items()}
    layout |= {f"quantizer.{key}": shape for key, shape in books.items()}
    tensors = checkpoint.read_parts(_TENSORS, _PARTS, layout)
    of_encoder, of_books = (
        {key.removeprefix(part): one for key, one in tensors.items() if key.startswith(part)}
        for part in _PARTS
    )
    return of_encoder, of_books


def _read_config(checkpoint: Checkpoint, profile: Profile, books: _Codebooks) -> SeanetConfig:
    published = checkpoint.read_json(_CONFIG)
    config = read_config(SeanetConfig, published, _CONFIG)
    expect(_CONFIG, published, "sample_rate", profile.sample_rate)
    expect(_CONFIG, published, "n_q", books.count)
    expect(_CONFIG, published, "codebook_size", books.size)
    frame_rate = profile.sample_rate / config.samples_per_frame
    if frame_rate != profile.frame_rate:
        raise WeightsInvalid(
            f"{_CONFIG}: strides make {frame_rate:g} frames a second, {profile.frame_rate:g} are expected"
        )
    return config
