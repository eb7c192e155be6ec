"""Weights in two parts become the very weights that torch's own weight norm computes at every step."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from services.extractor_worker.models.weight_norm import TwoParts, folded, published_layout

Wrap = Callable[[nn.Module], nn.Module]


def by_hooks(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return nn.utils.weight_norm(module)


WAYS = [
    (by_hooks, TwoParts.of_hooks),
    (nn.utils.parametrizations.weight_norm, TwoParts.of_parametrizations),
]


def convolution(seed: int, width_in: int, width_out: int, kernel: int) -> nn.Conv1d:
    torch.manual_seed(seed)
    return nn.Conv1d(width_in, width_out, kernel)


@pytest.mark.parametrize(("wrap", "parts_of"), WAYS)
@pytest.mark.parametrize(
    ("width_in", "width_out", "kernel"), [(1, 64, 7), (64, 32, 3), (32, 64, 1), (512, 256, 16)]
)
def test_a_folded_weight_is_torchs_to_the_last_bit(
    wrap: Wrap, parts_of: Callable[[str], TwoParts], width_in: int, width_out: int, kernel: int
) -> None:
    """The last bit can decide which of two codebook entries is nearer."""
    ours = convolution(0, width_in, width_out, kernel)
    layout = {key: tuple(tensor.shape) for key, tensor in ours.state_dict().items()}
    engines = wrap(convolution(0, width_in, width_out, kernel))
    with torch.no_grad():
        lengths = [one for key, one in engines.named_parameters() if one.shape == (width_out, 1, 1)]
        lengths[0].mul_(torch.rand(width_out, 1, 1) + 0.5)  # trained: no longer the direction's own length
    published = engines.state_dict()

    def name_of(key: str) -> str | TwoParts:
        return parts_of(key) if key == "weight" else key

    assert published_layout(layout, name_of) == {key: tuple(one.shape) for key, one in published.items()}
    tensors = folded(published, layout, name_of)
    engines(torch.zeros(1, width_in, kernel))  # it makes the weight anew
    assert isinstance(engines.weight, Tensor)
    assert torch.equal(tensors["weight"], engines.weight)
    assert torch.equal(tensors["bias"], published["bias"])
    assert tensors["weight"].is_contiguous()


def test_halves_become_float32_first() -> None:
    """A float32 module that loads narrower weights converts them first, too."""
    parts = {"w.weight_g": torch.rand(4, 1, 1).bfloat16(), "w.weight_v": torch.randn(4, 3, 5).bfloat16()}
    tensors = folded(parts, {"w.weight": (4, 3, 5)}, TwoParts.of_hooks)
    wide = {key: part.float() for key, part in parts.items()}
    assert torch.equal(
        tensors["w.weight"], folded(wide, {"w.weight": (4, 3, 5)}, TwoParts.of_hooks)["w.weight"]
    )
    assert tensors["w.weight"].dtype == torch.float32


def test_what_is_not_asked_for_is_left_alone() -> None:
    tensors = folded({"bias": torch.ones(2), "other": torch.ones(2)}, {"bias": (2,)}, str)
    assert tensors.keys() == {"bias"}
