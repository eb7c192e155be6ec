"""Convolutions with groups do without cuDNN, and compute what torch's do."""

import pytest
import torch
from torch import Tensor, nn

from services.extractor_worker.models.convolution import Conv1d


@pytest.mark.parametrize(("groups", "with_cudnn"), [(1, True), (8, False)])
def test_only_groups_are_computed_without_cudnn(
    groups: int, with_cudnn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN computes them one by one in exact float32, which takes seconds and all of a GPU's memory."""
    seen: list[bool] = []
    forward = nn.Conv1d.forward

    def watched(layer: nn.Conv1d, hidden: Tensor) -> Tensor:
        seen.append(torch.backends.cudnn.enabled)
        return forward(layer, hidden)

    monkeypatch.setattr(nn.Conv1d, "forward", watched)
    layer, hidden = Conv1d(8, 8, 3, groups=groups), torch.rand(2, 8, 20)
    ours = layer(hidden)
    assert seen == [with_cudnn]
    assert torch.backends.cudnn.enabled
    assert torch.equal(ours, torch.conv1d(hidden, layer.weight, layer.bias, groups=groups))
