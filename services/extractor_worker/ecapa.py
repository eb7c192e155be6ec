"""The ECAPA-TDNN speaker encoder: mel frames in, one embedding out. Knows no audio and no files.

Desplanques et al., arXiv 2005.07143, with reflect padding, and without batch norm unless asked for: Qwen3-TTS
has none. Attribute names are the key names of Qwen3-TTS' weights. Clips of one length only: zero
padding leaks through reflection, squeeze and pooling (cosine 0.65 for 3 s beside 10 s), so a mixed batch
would need lengths in `_conv`, `SqueezeExcitation` and `AttentivePooling`, and nowhere else.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_VARIANCE_FLOOR = 1e-12

Norm = Callable[[int], nn.Module]
"""Width -> what follows a rectifier: `nn.Identity` or `nn.BatchNorm1d`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerEncoderConfig:
    """`speaker_encoder_config` of Qwen3-TTS' config.json, which has only what differs from the defaults."""

    enc_dim: int
    """Width of the embedding."""
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    """Of the first layer, the Res2Net blocks, and their aggregation."""
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
        """Fewest mel frames: a reflection must be shorter than what it reflects."""
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
        self.fc = _conv(2 * channels[-1], config.enc_dim)

    def forward(self, mel: Tensor) -> Tensor:
        """Embed clips of equal length.

        Args:
            mel: [B, T, mel_dim] in the dtype of the weights; T >= `config.min_frames`.

        Returns:
            [B, enc_dim], not normalised.
        """
        hidden = mel.transpose(1, 2)  # [B, mel_dim, T]
        outputs = []
        for block in self.blocks:
            hidden = block(hidden)
            outputs.append(hidden)
        aggregated = self.mfa(torch.cat(outputs[1:], dim=1))  # [B, C, T]; the first layer is not part of it
        pooled = self.asp_bn(self.asp(aggregated))  # [B, 2 * C, 1]
        return self.fc(pooled).squeeze(-1)  # type: ignore[no-any-return] # [B, enc_dim]


def _conv(width_in: int, width_out: int, kernel: int = 1, dilation: int = 1) -> nn.Conv1d:
    """[B, C, T] -> [B, C', T]."""
    return nn.Conv1d(width_in, width_out, kernel, dilation=dilation, padding="same", padding_mode="reflect")


class TimeDelay(nn.Module):
    def __init__(self, width_in: int, width_out: int, norm: Norm, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = _conv(width_in, width_out, kernel, dilation)
        self.norm = norm(width_out)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(torch.relu(self.conv(hidden)))  # type: ignore[no-any-return]


class Res2Net(nn.Module):
    """Splits the channels into `scale` groups; each group also hears what the one before it became."""

    def __init__(self, width: int, scale: int, norm: Norm, kernel: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        group = width // scale
        self.blocks = nn.ModuleList(TimeDelay(group, group, norm, kernel, dilation) for _ in range(scale - 1))

    def forward(self, hidden: Tensor) -> Tensor:
        first, second, *others = hidden.chunk(self.scale, dim=1)
        outputs = [first, self.blocks[0](second)]  # the first group passes through as it is
        for block, group in zip(self.blocks[1:], others, strict=True):
            outputs.append(block(group + outputs[-1]))
        return torch.cat(outputs, dim=1)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from the mean over time."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = _conv(width, squeezed)
        self.conv2 = _conv(squeezed, width)

    def forward(self, hidden: Tensor) -> Tensor:
        mean = hidden.mean(dim=2, keepdim=True)  # [B, C, 1]
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

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(hidden))))  # type: ignore[no-any-return]


class AttentivePooling(nn.Module):
    """Mean and deviation over time, weighted by attention that also sees the plain mean and deviation."""

    def __init__(self, width: int, attention: int, norm: Norm) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * width, attention, norm)
        self.conv = _conv(attention, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, C, T] -> [B, 2 * C, 1]."""
        ones = hidden.new_ones(hidden.shape[0], 1, hidden.shape[2])
        # Summed in the dtype of the weights: in bfloat16 281 ones make 280, and the trained model saw it so.
        mean, deviation = _statistics(hidden, ones / ones.sum(dim=2, keepdim=True))  # [B, C, 1] each
        context = torch.cat(
            [hidden, mean.expand_as(hidden), deviation.expand_as(hidden)], dim=1
        )  # [B, 3 * C, T]
        attention = torch.softmax(self.conv(torch.tanh(self.tdnn(context))), dim=2)  # [B, C, T]
        return torch.cat(_statistics(hidden, attention), dim=1)  # [B, 2 * C, 1]


def _statistics(hidden: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and standard deviation over time, [B, C, 1] each."""
    mean = (weights * hidden).sum(dim=2, keepdim=True)
    variance = (weights * (hidden - mean).pow(2)).sum(dim=2, keepdim=True)
    return mean, variance.clamp(_VARIANCE_FLOOR).sqrt()
