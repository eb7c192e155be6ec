"""The extractor for VoxCPM2. It makes latents of the engine's audio VAE, in patches of four frames.

The artifact has two tensors, which differ in where zeros pad the clip to whole patches. In `ref_audio_feat`,
the reference whose voice the engine imitates, zeros follow the clip. In `audio_feat`, the prompt that the
engine continues, zeros precede the clip. Both are made for every clip. The second is kept only if the clip
has a transcript.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from services.extractor_worker.models.audio_vae import (
    AudioVaeConfig,
    AudioVaeEncoder,
    published_layout,
    published_name,
)
from services.extractor_worker.models.weight_norm import folded
from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor, untrained_inputs
from services.extractor_worker.weights.loading import Checkpoint
from services.extractor_worker.weights.modules import filled, layout_of
from services.extractor_worker.weights.published import expect, read_config
from services.extractor_worker.weights.untrained import random_tensors
from services.shared.audio import ReferenceAudio
from speaker_registry.errors import WeightsInvalid, WeightsMissing

_CONFIG, _PICKLE, _CONVERTED = "config.json", "audiovae.pth", "audiovae.safetensors"
_PATCH_FRAMES = 4
"""The number of frames of latents that the language model takes at once."""


class VoxCPM2Extractor(TorchExtractor[Tensor, Tensor]):
    """The audio VAE's encoder, on its device, in float32, as in the engine.

    On a GPU clips are encoded in batches. Sums are then made in another order, and latents differ by rounding
    errors: by up to 4e-4 at the published size, where the latents of a single clip have errors of 3e-4.

    A prepared clip is float32 [2, 1, N]: the clip with zeros after it, and with zeros before it. N is a
    multiple of a patch. An encoded clip is float32 [2, 64, 4 * P], on the device.
    """

    code_version = 1
    gpu_batch_seconds = 60.0
    """A second of audio needs 8 MB at the widest layer, and a few tensors of that size exist at once."""
    always_float32 = True

    def __init__(self, loading: Loading) -> None:
        config, tensors, fingerprint_inputs = _weights(loading)
        super().__init__(
            loading,
            weights=fingerprint_inputs,
            vae=asdict(config),
            patch_frames=_PATCH_FRAMES,
            zeros={"ref_audio_feat": "after", "audio_feat": "before"},
        )
        self._sample_rate = config.sample_rate
        self._patch_samples = _PATCH_FRAMES * config.samples_per_frame
        self._encoder = filled(partial(AudioVaeEncoder, config), tensors).to(self.device)

    def _prepare(self, clip: ReferenceAudio) -> Tensor:
        samples = self.resampled(clip, self._sample_rate)
        zeros = -len(samples) % self._patch_samples
        sides = [functional.pad(samples, (0, zeros)), functional.pad(samples, (zeros, 0))]
        return self.pinned(torch.stack(sides)[:, None])  # [2, 1, N]

    def _encode(self, prepared: Tensor) -> Tensor:
        return self._encode_all([prepared])[0]

    def _encode_all(self, prepared: Sequence[Tensor]) -> list[Tensor]:
        """Encode all clips in one batch, once with zeros after the clips and once with zeros before them.

        The batch is padded on the right, which does not change the result of a causal encoder.
        """
        longest = max(clip.shape[-1] for clip in prepared)
        padded = [functional.pad(self.on_device(clip), (0, longest - clip.shape[-1])) for clip in prepared]
        batch = torch.stack(padded, dim=1)  # [2, B, 1, N]
        latents = torch.stack([self._encoder(side) for side in batch], dim=1)  # [B, 2, 64, F]
        frames = [clip.shape[-1] * _PATCH_FRAMES // self._patch_samples for clip in prepared]
        return [row[..., :count] for row, count in zip(latents, frames, strict=True)]

    def _finish(self, encoded: Tensor) -> dict[str, Tensor]:
        """Return `ref_audio_feat` and `audio_feat`: float32 [P, 4, 64] each, P = ceil(N / 2560)."""
        frames = encoded.transpose(1, 2)  # [2, 4 * P, 64]
        reference, continuation = frames.reshape(2, -1, _PATCH_FRAMES, frames.shape[-1])  # [P, 4, 64] each
        return {"ref_audio_feat": reference, "audio_feat": continuation}


def _weights(loading: Loading) -> tuple[AudioVaeConfig, Mapping[str, Tensor], Mapping[str, Any]]:
    """Return the architecture, the encoder's tensors and the fingerprint inputs."""
    if loading.seed is not None:
        config = AudioVaeConfig()
        layout = layout_of(partial(AudioVaeEncoder, config))
        return config, random_tensors(layout, loading.seed), untrained_inputs(loading.seed)
    checkpoint, name = _checkpoint(loading)
    config = _read_config(checkpoint, loading)
    layout = layout_of(partial(AudioVaeEncoder, config))
    published = checkpoint.read_tensors(name, "encoder.", published_layout(layout))
    return config, folded(published, layout, published_name), checkpoint.fingerprint_inputs([name])


def _checkpoint(loading: Loading) -> tuple[Checkpoint, str]:
    """Find the checkpoint and its tensor file. Like the engine, prefer a converted file to the pickle."""
    weights = loading.profile.weights
    files = {name: sha256 for name, sha256 in weights.files.items() if name != _PICKLE} | {_CONVERTED: None}
    converted = replace(loading.profile, weights=weights.model_copy(update={"files": files}))
    try:
        return replace(loading, profile=converted).checkpoint(), _CONVERTED
    except WeightsMissing:
        return loading.checkpoint(), _PICKLE


def _read_config(checkpoint: Checkpoint, loading: Loading) -> AudioVaeConfig:
    profile = loading.profile
    published = checkpoint.read_json(_CONFIG)
    expect(_CONFIG, published, "architecture", "voxcpm2", why=": earlier VoxCPM models have another VAE")
    expect(_CONFIG, published, "patch_size", _PATCH_FRAMES)
    where = f"{_CONFIG}: audio_vae_config"
    config = read_config(AudioVaeConfig, published.get("audio_vae_config"), where)
    expect(_CONFIG, published, "feat_dim", config.latent_dim)
    expect(where, asdict(config), "latent_dim", profile.tensors["ref_audio_feat"].shape[-1])
    expect(where, asdict(config), "sample_rate", profile.sample_rate)
    patches = profile.sample_rate / (config.samples_per_frame * _PATCH_FRAMES)
    if patches != profile.frame_rate:
        raise WeightsInvalid(
            f"{where}: encoder_rates make {patches:g} patches a second, {profile.frame_rate:g} are expected"
        )
    return config
