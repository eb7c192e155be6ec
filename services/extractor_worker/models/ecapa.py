"""The ECAPA-TDNN speaker encoder: mel frames in, one embedding out. This module knows no audio and no files.

The network is that of Desplanques et al., arXiv 2005.07143, with reflect padding. Batch norm is optional,
because Qwen3-TTS has none. Attribute names are the key names of Qwen3-TTS' weights.

Zero padding would leak through reflection, squeeze and pooling: a 3 s clip beside a 10 s clip would get an
embedding with a cosine similarity of 0.65 to its own. Batches of several lengths therefore come with the
lengths. Each clip is reflected at its own end, and the frames after that end are ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_VARIANCE_FLOOR = 1e-12

Norm = Callable[[int], nn.Module]
"""Makes the layer after a rectifier for a width: `nn.Identity` or `nn.BatchNorm1d`."""


class Lengths:
    """The lengths of the clips of a zero-padded batch.

    Args:
        frames: int64 [B], on the device: the length of each clip.
        longest: T, the padded length.
        dtype: the dtype of the mask.
    """

    def __init__(self, frames: Tensor, longest: int, dtype: torch.dtype) -> None:
        self._last = frames[:, None] - 1  # [B, 1]
        self.mask = (torch.arange(longest, device=frames.device) <= self._last)[:, None].to(
            dtype
        )  # [B, 1, T]

    def reflected(self, hidden: Tensor, before: int, after: int) -> Tensor:
        """Pad by reflecting each clip at its own ends: [B, C, T] -> [B, C, before + T + after]."""
        index = torch.arange(-before, hidden.shape[2] + after, device=hidden.device).abs()  # [W]
        index = torch.where(index <= self._last, index, 2 * self._last - index).clamp(min=0)  # [B, W]
        return hidden.gather(2, index[:, None].expand(-1, hidden.shape[1], -1))  # [B, C, W]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerEncoderConfig:
    """`speaker_encoder_config` of Qwen3-TTS' config.json, which omits fields that have these defaults."""

    enc_dim: int
    """The width of the embedding."""
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    """The channels of the first layer, of each Res2Net block, and of the blocks' aggregation."""
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: int = 24_000

    def __post_init__(self) -> None:
        if not len(self.enc_channels) == len(self.enc_kernel_sizes) == len(self.enc_dilations):
            raise ValueError("enc_channels, enc_kernel_sizes and enc_dilations differ in length")
        if sum(self.enc_channels[1:-1]) != self.enc_channels[-1]:
            raise ValueError("the last of enc_channels is not the sum of the blocks'")

    @property
    def min_frames(self) -> int:
        """The fewest mel frames of a clip. A reflection must be shorter than the clip."""
        layers = zip(self.enc_kernel_sizes, self.enc_dilations, strict=True)
        return 1 + max((kernel - 1) * dilation - (kernel - 1) * dilation // 2 for kernel, dilation in layers)


class SpeakerEncoder(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig, norm: Norm = nn.Identity) -> None:
        super().__init__()
        channels, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        blocks: list[nn.Module] = [TimeDelay(config.mel_dim, channels[0], norm, kernels[0], dilations[0])]
        for index in range(1, len(channels) - 1):
            width_in, width = channels[index - 1], channels[index]
            blocks.append(SERes2Net(width_in, width, norm, kernels[index], dilations[index], config=config))
        self.blocks = nn.ModuleList(blocks)
        self.mfa = TimeDelay(channels[-1], channels[-1], norm, kernels[-1], dilations[-1])
        self.asp = AttentivePooling(channels[-1], config.enc_attention_channels, norm)
        self.asp_bn = norm(2 * channels[-1])
        self.fc = SameConv(2 * channels[-1], config.enc_dim)

    def forward(self, mel: Tensor, frames: Tensor | None = None) -> Tensor:
        """Embed clips.

        Args:
            mel: [B, T, mel_dim] in the dtype of the weights; T >= `config.min_frames`.
            frames: int64 [B], the frames of each clip, each >= `config.min_frames`. Required if they differ.
                The embeddings then equal those of single clips up to rounding errors: a few units in the last
                place of the largest value.

        Returns:
            [B, enc_dim], not normalised.
        """
        lengths = None if frames is None else Lengths(frames, mel.shape[1], mel.dtype)
        hidden = mel.transpose(1, 2)  # [B, mel_dim, T]
        outputs = []
        for block in self.blocks:
            hidden = block(hidden, lengths)
            outputs.append(hidden)
        aggregated = self.mfa(torch.cat(outputs[1:], dim=1), lengths)  # [B, C, T]; without the first layer
        pooled = self.asp_bn(self.asp(aggregated, lengths))  # [B, 2 * C, 1]
        return self.fc(pooled).squeeze(-1)  # type: ignore[no-any-return] # [B, enc_dim]


class SameConv(nn.Conv1d):
    """A convolution with reflect padding: [B, C, T] -> [B, C', T]."""

    def __init__(self, width_in: int, width_out: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__(
            width_in, width_out, kernel, dilation=dilation, padding="same", padding_mode="reflect"
        )

    def forward(self, hidden: Tensor, lengths: Lengths | None = None) -> Tensor:
        reach = self.dilation[0] * (self.kernel_size[0] - 1)
        if lengths is None or reach == 0:
            return super().forward(hidden)
        padded = lengths.reflected(hidden, reach // 2, reach - reach // 2)
        return functional.conv1d(padded, self.weight, self.bias, dilation=self.dilation)


class TimeDelay(nn.Module):
    def __init__(self, width_in: int, width_out: int, norm: Norm, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = SameConv(width_in, width_out, kernel, dilation)
        self.norm = norm(width_out)

    def forward(self, hidden: Tensor, lengths: Lengths | None = None) -> Tensor:
        return self.norm(torch.relu(self.conv(hidden, lengths)))  # type: ignore[no-any-return]


class Res2Net(nn.Module):
    """Splits the channels into `scale` groups. Each group also takes the output of the group before it."""

    def __init__(self, width: int, scale: int, norm: Norm, kernel: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        group = width // scale
        self.blocks = nn.ModuleList(TimeDelay(group, group, norm, kernel, dilation) for _ in range(scale - 1))

    def forward(self, hidden: Tensor, lengths: Lengths | None = None) -> Tensor:
        first, second, *others = hidden.chunk(self.scale, dim=1)  # [B, C / scale, T] each
        outputs = [first, self.blocks[0](second, lengths)]  # the first group passes through as it is
        for block, group in zip(self.blocks[1:], others, strict=True):
            outputs.append(block(group + outputs[-1], lengths))
        return torch.cat(outputs, dim=1)  # [B, C, T]


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from the mean over time."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = SameConv(width, squeezed)
        self.conv2 = SameConv(squeezed, width)

    def forward(self, hidden: Tensor, lengths: Lengths | None = None) -> Tensor:
        if lengths is None:
            mean = hidden.mean(dim=2, keepdim=True)  # [B, C, 1]
        else:
            mean = (hidden * lengths.mask).sum(dim=2, keepdim=True) / lengths.mask.sum(dim=2, keepdim=True)
        return hidden * torch.sigmoid(self.conv2(torch.relu(self.conv1(mean))))


class SERes2Net(nn.Module):
    def __init__(
        self,
        width_in: int,
        width: int,
        norm: Norm,
        kernel: int,
        dilation: int,
        *,
        config: SpeakerEncoderConfig,
    ) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(width_in, width, norm)
        self.res2net_block = Res2Net(width, config.enc_res2net_scale, norm, kernel, dilation)
        self.tdnn2 = TimeDelay(width, width, norm)
        self.se_block = SqueezeExcitation(width, config.enc_se_channels)

    def forward(self, hidden: Tensor, lengths: Lengths | None = None) -> Tensor:
        inner = self.res2net_block(self.tdnn1(hidden, lengths), lengths)
        return hidden + self.se_block(self.tdnn2(inner, lengths), lengths)  # type: ignore[no-any-return]


class AttentivePooling(nn.Module):
    """Pools over time by attention: the weighted mean and deviation.

    The attention also takes the unweighted mean and deviation as input.
    """

    def __init__(self, width: int, attention: int, norm: Norm) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * width, attention, norm)
        self.conv = SameConv(attention, width)

    def forward(self, hidden: Tensor, lengths: Lengths | None = None) -> Tensor:
        """Pool over time: [B, C, T] -> [B, 2 * C, 1]."""
        ones = lengths.mask if lengths else hidden.new_ones(hidden.shape[0], 1, hidden.shape[2])
        # Sum in the dtype of the weights, as in training: in bfloat16, 281 ones add up to 280.
        mean, deviation = _statistics(hidden, ones / ones.sum(dim=2, keepdim=True))  # [B, C, 1] each
        context = torch.cat(
            [hidden, mean.expand_as(hidden), deviation.expand_as(hidden)], dim=1
        )  # [B, 3 * C, T]
        scores = self.conv(torch.tanh(self.tdnn(context)))  # [B, C, T]
        if lengths is not None:
            scores = scores.masked_fill(lengths.mask == 0, -torch.inf)
        attention = torch.softmax(scores, dim=2)
        return torch.cat(_statistics(hidden, attention), dim=1)  # [B, 2 * C, 1]


def _statistics(hidden: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the weighted mean and standard deviation over time, [B, C, 1] each."""
    mean = (weights * hidden).sum(dim=2, keepdim=True)
    variance = (weights * (hidden - mean).pow(2)).sum(dim=2, keepdim=True)
    return mean, variance.clamp(_VARIANCE_FLOOR).sqrt()
