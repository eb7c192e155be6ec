"""Fills models of transformers with tensors that we have read ourselves. This module knows no model and no
files.

Sub-modules are never addressed: their paths change between versions, the published key names do not.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers.utils import logging as transformers_logging

from speaker_registry.errors import WeightsInvalid


def pretrained(kind: type, config: Any, tensors: Mapping[str, Tensor], **options: Any) -> Any:
    """Return a model of class `kind` with these tensors, on the CPU, for inference.

    Args:
        kind: a model class of transformers.
        config: its configuration.
        tensors: all of its tensors, under their published names, in the layout that was checked.
        options: further arguments of `from_pretrained`, such as `dtype`.

    Raises:
        WeightsInvalid: the installed transformers reads the published layout differently.
    """
    from_pretrained: Any = kind.from_pretrained  # type: ignore[attr-defined]  # transformers has no types
    with _no_progress_bar():
        model, report = from_pretrained(
            None, config=config, state_dict=dict(tensors), output_loading_info=True, **options
        )
    problems = {what: sorted(map(str, names))[:3] for what, names in report.items() if names}
    if problems:
        raise WeightsInvalid(f"transformers does not take the weights as published: {problems}")
    return model.eval().requires_grad_(False)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Turn transformers' progress bar off inside the block, because a worker's standard error is for logs."""
    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
