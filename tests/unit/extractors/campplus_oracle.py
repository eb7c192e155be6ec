"""CAM++ written a second time in torch, which can compute in float64. onnxruntime cannot."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from services.extractor_worker.models.campplus_untrained import CamPlusPlusConfig


class Oracle:
    """CAM++ with untrained batch norms, which hardly change their input."""

    def __init__(self, weights: Mapping[str, Tensor], config: CamPlusPlusConfig) -> None:
        self.weights, self.config = weights, config

    def __call__(self, features: Tensor) -> Tensor:
        """[T, 80] -> [192]."""
        hidden = relu(self.flat(features.T[None, None], "head.first"))  # [1, C, 80, T]
        for index, stride in enumerate((2, 1, 2, 1)):
            short = self.flat(hidden, f"head.{index}.short", stride) if stride > 1 else hidden
            inner = relu(self.flat(hidden, f"head.{index}.a", stride))
            hidden = relu(self.flat(inner, f"head.{index}.b") + short)
        hidden = relu(self.flat(hidden, "head.last", 2)).flatten(1, 2)  # [1, C', T]
        hidden = relu(self.over_time(hidden, "tdnn", stride=2))
        for block, (layers, dilation) in enumerate(
            zip(self.config.layers, self.config.dilations, strict=True)
        ):
            for layer in range(layers):
                added = self.layer(hidden, f"block{block}.{layer}", dilation)
                hidden = torch.cat([hidden, added], dim=1)
            hidden = self.over_time(relu(norm(hidden)), f"transit{block}")
        hidden = relu(norm(hidden))
        statistics = torch.cat([hidden.mean(2), hidden.std(2, unbiased=True)], dim=1)
        return norm(self.over_time(statistics[..., None], "dense"))[0, :, 0]

    def layer(self, hidden: Tensor, name: str, dilation: int) -> Tensor:
        hidden = relu(norm(self.over_time(relu(norm(hidden)), f"{name}.in")))
        segments = hidden.split(self.config.segment, dim=2)
        means = [part.mean(2, keepdim=True).expand_as(part) for part in segments]
        context = hidden.mean(2, keepdim=True) + torch.cat(means, dim=2)
        gate = self.over_time(relu(self.over_time(context, f"{name}.squeeze")), f"{name}.gate")
        return self.over_time(hidden, f"{name}.local", dilation=dilation) * gate.sigmoid()

    def flat(self, hidden: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = self.weights[f"{name}.conv.weight"]
        return norm(functional.conv2d(hidden, weight, stride=(stride, 1), padding=weight.shape[2] // 2))

    def over_time(self, hidden: Tensor, name: str, stride: int = 1, dilation: int = 1) -> Tensor:
        weight, bias = self.weights[f"{name}.conv.weight"], self.weights.get(f"{name}.conv.bias")
        padding = dilation * (weight.shape[2] // 2)
        return functional.conv1d(hidden, weight, bias, stride, padding, dilation)


relu: Callable[[Tensor], Tensor] = torch.relu


def norm(hidden: Tensor) -> Tensor:
    return hidden / (1 + 1e-5) ** 0.5
