"""The extractors for Fish Speech S2 Pro and Audio8. They make codes of these engines' DAC.

The codes are those that fish-speech 0.1.0 and vLLM-Omni compute from the same weights and 44.1 kHz samples.
Both run this codec in float32, whatever dtype the language model runs in.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from services.extractor_worker.models.fish_dac import CodecConfig, CodecEncoder, published_name
from services.extractor_worker.models.weight_norm import folded, published_layout
from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor, untrained_inputs
from services.extractor_worker.weights.loading import Checkpoint
from services.extractor_worker.weights.modules import filled, layout_of
from services.extractor_worker.weights.untrained import random_tensors
from services.shared.audio import ReferenceAudio
from speaker_registry.errors import AudioTooLong

_TENSORS = "codec.pth"
_PARTS = ("encoder.", "quantizer.")
_IGNORED_KEYS = re.compile(r"\.(freqs_cis|causal_mask)$|^quantizer\.(post_module|upsample)\.")
"""Keys of the file that are not read: tables, which follow from the configuration and whose sizes differ
between releases, and tensors that only the decoder needs, in which Fish Speech and Audio8 differ.
"""


@dataclass(frozen=True, slots=True)
class PreparedClip:
    """The samples of a clip: float32 [frames * samples_per_frame] at 44.1 kHz, with zeros at the end of the
    last frame.
    """

    samples: Tensor
    frames: int


class FishSpeechExtractor(TorchExtractor[PreparedClip, Tensor]):
    """The encoder of Fish Speech S2 Pro's codec, on its device.

    A clip that is encoded alone gets the engine's codes. In a batch, on a GPU, sums are made in another
    order, and the latents that the codes are computed from differ by 4e-6. Codes are equal in tests, but
    where two codebook entries are almost equally near, the batch could choose the other one.
    """

    code_version = 1
    always_float32 = True
    gpu_batch_seconds = 30.0
    """A second of audio needs 70 MB on the device."""
    codec: ClassVar[CodecConfig] = CodecConfig()
    """The architecture. The published file has no configuration, and its shapes must fit this one."""

    def __init__(self, loading: Loading) -> None:
        if loading.seed is None:
            checkpoint = loading.checkpoint()
            tensors, weights = _published(checkpoint, self.codec), checkpoint.fingerprint_inputs([_TENSORS])
        else:
            layout = layout_of(partial(CodecEncoder, self.codec))
            tensors, weights = random_tensors(layout, loading.seed), untrained_inputs(loading.seed)
        super().__init__(
            loading, weights=weights, codec=asdict(self.codec), padded_to_samples=self.codec.samples_per_frame
        )
        self._encoder = filled(partial(CodecEncoder, self.codec), tensors).to(self.device)

    def _prepare(self, clip: ReferenceAudio) -> PreparedClip:
        samples = self.resampled(clip, self.codec.sample_rate)
        frames = -(-len(samples) // self.codec.samples_per_frame)
        if frames > self.codec.max_frames:
            most = self.codec.max_frames * self.codec.samples_per_frame / self.codec.sample_rate
            raise AudioTooLong(f"the clip is {clip.seconds:.1f} s, the encoder takes at most {most:.1f} s")
        padding = frames * self.codec.samples_per_frame - len(samples)
        return PreparedClip(self.pinned(functional.pad(samples, (0, padding))), frames)

    def _encode(self, prepared: PreparedClip) -> Tensor:
        """Return int64 [codebooks, T], still on the device."""
        return self._encode_together([prepared])[0]

    def _encode_all(self, prepared: Sequence[PreparedClip]) -> list[Tensor]:
        """Encode clips of similar lengths in one batch.

        The encoder is causal, so the zeros after a clip reach none of its frames.
        """
        max_frames = int(self.batch_seconds * self.codec.sample_rate / self.codec.samples_per_frame)
        codes: dict[int, Tensor] = {}
        for group in _groups([clip.frames for clip in prepared], max_frames):
            together = self._encode_together([prepared[index] for index in group])
            codes |= dict(zip(group, together, strict=True))
        return [codes[index] for index in range(len(prepared))]

    def _encode_together(self, clips: Sequence[PreparedClip]) -> list[Tensor]:
        longest = max(len(clip.samples) for clip in clips)
        batch = torch.zeros(len(clips), 1, longest, device=self.device)
        for row, clip in zip(batch, clips, strict=True):
            row[0, : len(clip.samples)].copy_(clip.samples, non_blocking=True)
        codes = self._encoder(batch)  # [B, codebooks, T]
        return [one[:, : clip.frames] for one, clip in zip(codes, clips, strict=True)]

    def _finish(self, encoded: Tensor) -> dict[str, Tensor]:
        """Return `ref_codes_fq`: int64 [T, 10], T = ceil(N / 2048).

        The first codebook has values 0 … 4095, the others 0 … 1023.
        """
        return {"ref_codes_fq": encoded.T}


class Audio8Extractor(FishSpeechExtractor):
    """The encoder of Audio8's codec. It has the same architecture with other weights."""

    codec = CodecConfig(straight_through=False)


def _groups(frames: Sequence[int], max_frames: int) -> Iterator[list[int]]:
    """Yield the indices of clips to encode in one batch, shortest clips first, to keep padding short.

    A batch, padded to its longest clip, has at most `max_frames` frames. A longer clip is encoded alone.
    """
    group: list[int] = []
    for index in sorted(range(len(frames)), key=lambda index: frames[index]):
        if group and (len(group) + 1) * frames[index] > max_frames:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _published(checkpoint: Checkpoint, codec: CodecConfig) -> Mapping[str, Tensor]:
    layout = layout_of(partial(CodecEncoder, codec))
    expected = published_layout(layout, published_name)
    published = checkpoint.read_parts(_TENSORS, _PARTS, expected, ignored=_IGNORED_KEYS)
    return folded(published, layout, published_name)
