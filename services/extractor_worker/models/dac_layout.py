"""The tensors of a DAC encoder as transformers names them: the Descript Audio Codec's, and the acoustic one
of Higgs Audio's tokenizer. Knows no files.
"""

from collections.abc import Sequence

Layout = dict[str, tuple[int, ...]]
"""Key -> shape."""

_KERNEL = 7


def dac_encoder_layout(width: int, ratios: Sequence[int], width_out: int) -> Layout:
    """Without any prefix.

    Args:
        width: channels at the full rate; each stage doubles them.
        ratios: how many times fewer places each stage leaves.
        width_out: channels of the latents.
    """
    layout = convolution_layout("conv1", 1, width, _KERNEL)
    for stage, ratio in enumerate(ratios):
        for unit in (1, 2, 3):
            layout |= _residual_unit(f"block.{stage}.res_unit{unit}", width)
        layout |= _snake(f"block.{stage}.snake1", width)
        layout |= convolution_layout(f"block.{stage}.conv1", width, 2 * width, 2 * ratio)
        width *= 2
    return layout | _snake("snake1", width) | convolution_layout("conv2", width, width_out, 3)


def convolution_layout(name: str, width_in: int, width_out: int, kernel: int) -> Layout:
    return {f"{name}.weight": (width_out, width_in, kernel), f"{name}.bias": (width_out,)}


def _residual_unit(name: str, width: int) -> Layout:
    first = _snake(f"{name}.snake1", width) | convolution_layout(f"{name}.conv1", width, width, _KERNEL)
    second = _snake(f"{name}.snake2", width) | convolution_layout(f"{name}.conv2", width, width, 1)
    return first | second


def _snake(name: str, width: int) -> Layout:
    return {f"{name}.alpha": (1, width, 1)}
