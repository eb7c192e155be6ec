"""The names and shapes of a DAC encoder's tensors in transformers. Knows no files.

The Descript Audio Codec has such an encoder, and Higgs Audio's tokenizer has one as its acoustic encoder.
"""

from collections.abc import Sequence

Layout = dict[str, tuple[int, ...]]
"""Maps each key to its shape."""

_KERNEL = 7


def dac_encoder_layout(width: int, ratios: Sequence[int], width_out: int) -> Layout:
    """Return the layout of a DAC encoder, without the file's prefix.

    Args:
        width: the number of channels at the full rate. Each stage doubles it.
        ratios: the downsampling ratio of each stage.
        width_out: the number of channels of the latents.
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
