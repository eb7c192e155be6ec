"""The extractor of speaker embeddings of SpeechBrain's ECAPA-TDNN, trained on VoxCeleb.

The result equals that of `EncoderClassifier.encode_batch` for one clip, up to the order of float32 sums.
`normalize` is off there by default, and off here. The published mean_var_norm_emb.ckpt, a mean to subtract
from embeddings, is used only with `normalize`, so that file is not read.

The model has no config.json. The values of its hyperparams.yaml are written down here, because reading that
file means calling whatever functions it names.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import Tensor, nn

from services.extractor_worker.features.speechbrain_fbank import FbankSettings, fbank
from services.extractor_worker.models.ecapa import SpeakerEncoder, SpeakerEncoderConfig
from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor, untrained_inputs
from services.extractor_worker.weights.modules import Layout, filled, layout_of
from services.extractor_worker.weights.untrained import random_tensors
from services.shared.audio import ReferenceAudio

_TENSORS = "embedding_model.ckpt"
PUBLISHED = SpeakerEncoderConfig(
    enc_dim=192, mel_dim=80, enc_channels=(1024, 1024, 1024, 1024, 3072), sample_rate=16_000
)
"""The architecture of speechbrain/spkrec-ecapa-voxceleb."""


class EcapaVoxCelebExtractor(TorchExtractor[Tensor, Tensor]):
    """The ECAPA-TDNN encoder on the device, in float32.

    Clips are encoded one at a time, because a padded batch would change the result: a cosine similarity of
    0.9999, even if the encoder knows the lengths.

    Args:
        loading: the profile, the source of the weights, and the device.
        architecture: the architecture of the weights, which their file does not contain.
    """

    code_version = 1
    always_float32 = True

    def __init__(self, loading: Loading, architecture: SpeakerEncoderConfig = PUBLISHED) -> None:
        build = partial(SpeakerEncoder, architecture, norm=nn.BatchNorm1d)
        tensors, fingerprint_inputs = _weights(loading, layout_of(build))
        self._fbank = FbankSettings(sample_rate=architecture.sample_rate, bands=architecture.mel_dim)
        super().__init__(
            loading,
            weights=fingerprint_inputs,
            fbank=asdict(self._fbank) | {"mean_subtracted": True},
            speaker_encoder=asdict(architecture) | {"batch_norm": True},
        )
        self._min_samples = self._fbank.samples(architecture.min_frames)
        self._encoder = filled(build, tensors).to(self.device)

    def _prepare(self, clip: ReferenceAudio) -> Tensor:
        """Return float32 [1, T, 80], with the mean over the clip subtracted from each band."""
        samples = self.resampled(clip, self._fbank.sample_rate, min_samples=self._min_samples)
        bands = fbank(samples[None], self._fbank)  # [1, T, 80]
        return self.pinned(bands - bands.mean(dim=1, keepdim=True))

    def _encode(self, prepared: Tensor) -> Tensor:
        """Return float32 [1, D], on the device."""
        return self._encoder(self.on_device(prepared))  # type: ignore[no-any-return]

    def _finish(self, encoded: Tensor) -> dict[str, Tensor]:
        """Return `speaker_embedding`: float32 [D], not normalised."""
        return {"speaker_embedding": encoded[0]}


def _weights(loading: Loading, layout: Layout) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Return the encoder's tensors and the fingerprint inputs."""
    if loading.seed is not None:
        return random_tensors(layout, loading.seed), untrained_inputs(loading.seed)
    checkpoint = loading.checkpoint()
    published = checkpoint.read_tensors(
        _TENSORS, "", {_published_name(key): shape for key, shape in layout.items()}
    )
    tensors = {key: published[_published_name(key)] for key in layout}
    return tensors, checkpoint.fingerprint_inputs([_TENSORS])


def _published_name(key: str) -> str:
    """Map a key to its published name. SpeechBrain wraps each convolution and each norm, so `fc.weight` is
    published as `fc.conv.weight`.
    """
    module, _, parameter = key.rpartition(".")
    wrapped = "norm" if module.endswith(("norm", "asp_bn")) else "conv"
    return f"{module}.{wrapped}.{parameter}"
