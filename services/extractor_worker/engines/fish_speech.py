"""What Fish Speech S2 Pro and Audio8 need of a voice: codes of their DAC. Knows its file.

What fish-speech 0.1.0 and vLLM-Omni compute from the same weights and 44.1 kHz samples. Engines run this
codec in float32, whatever the language model runs in.
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
"""Tables, which follow from the configuration, whose size differs between releases; and what only the decoder
needs, in which Fish Speech and Audio8 differ.
"""


@dataclass(frozen=True, slots=True)
class PreparedClip:
    """samples: float32 [frames * samples_per_frame], 44.1 kHz, the last frame filled up with zeros."""

    samples: Tensor
    frames: int


class FishSpeechExtractor(TorchExtractor[PreparedClip, Tensor]):
    """The encoder of Fish Speech S2 Pro's codec, loaded and on its device.

    Alone, a clip's codes are the engine's. Among others, on a GPU, the latents before them move by 4e-6, as
    sums are made in another order: codes are equal in tests, but a very close call could go the other way.

    Raises:
        WeightsMissing: naming the file and how to get it.
        WeightsInvalid: naming what is wrong with which file.
    """

    code_version = 1
    always_float32 = True
    gpu_batch_seconds = 30.0
    """A second is 70 MB."""
    codec: ClassVar[CodecConfig] = CodecConfig()
    """The architecture: the published file brings no configuration, only shapes, which must be these."""

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
        """int64 [codebooks, T], still on the device."""
        return self._encode_together([prepared])[0]

    def _encode_all(self, prepared: Sequence[PreparedClip]) -> list[Tensor]:
        """Clips of similar lengths together: the encoder is causal, so the zeros behind a clip reach none of
        its frames.
        """
        most_frames = int(self.batch_seconds * self.codec.sample_rate / self.codec.samples_per_frame)
        codes: dict[int, Tensor] = {}
        for group in _groups([clip.frames for clip in prepared], most_frames):
            together = self._encode_together([prepared[place] for place in group])
            codes |= dict(zip(group, together, strict=True))
        return [codes[place] for place in range(len(prepared))]

    def _encode_together(self, clips: Sequence[PreparedClip]) -> list[Tensor]:
        longest = max(len(clip.samples) for clip in clips)
        batch = torch.zeros(len(clips), 1, longest, device=self.device)
        for row, clip in zip(batch, clips, strict=True):
            row[0, : len(clip.samples)].copy_(clip.samples, non_blocking=True)
        codes = self._encoder(batch)  # [B, codebooks, T]
        return [one[:, : clip.frames] for one, clip in zip(codes, clips, strict=True)]

    def _finish(self, encoded: Tensor) -> dict[str, Tensor]:
        """`ref_codes_fq`: int64 [T, 10], T = ceil(N / 2048); first 0 … 4095, the others 0 … 1023."""
        return {"ref_codes_fq": encoded.T}


class Audio8Extractor(FishSpeechExtractor):
    """Audio8's codec has the same encoder, with weights of its own."""

    codec = CodecConfig(straight_through=False)


def _groups(frames: Sequence[int], most_frames: int) -> Iterator[list[int]]:
    """Places of clips that may be encoded together: of no more than `most_frames` padded to the longest, or
    alone. Shortest first, so that there is little to pad.
    """
    group: list[int] = []
    for place in sorted(range(len(frames)), key=lambda place: frames[place]):
        if group and (len(group) + 1) * frames[place] > most_frames:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _published(checkpoint: Checkpoint, codec: CodecConfig) -> Mapping[str, Tensor]:
    layout = layout_of(partial(CodecEncoder, codec))
    published = published_layout(layout, published_name)
    tensors: dict[str, Tensor] = {}
    for part in _PARTS:
        expected = {key.removeprefix(part): shape for key, shape in published.items() if key.startswith(part)}
        found = checkpoint.read_tensors(_TENSORS, part, expected, ignored=_IGNORED_KEYS)
        tensors |= {part + key: tensor for key, tensor in found.items()}
    return folded(tensors, layout, published_name)
