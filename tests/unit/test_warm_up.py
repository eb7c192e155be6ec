"""What a worker does with an extractor before it says that it serves."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from services.extractor_worker.process import _warm_up


class Extractor:
    """Notes what came at once, and what was finished."""

    def __init__(self, batch_seconds: float) -> None:
        self.batch_seconds = batch_seconds
        self.encoded: list[int] = []
        self.finished = 0

    def example(self) -> Any:
        return SimpleNamespace(seconds=3.0)

    def prepare(self, clip: Any) -> Any:
        return clip

    def encode(self, prepared: Sequence[Any]) -> Sequence[Any]:
        self.encoded.append(len(prepared))
        return prepared

    def finish(self, _encoded: Any) -> None:
        self.finished += 1


@pytest.mark.parametrize(("batch_seconds", "encoded"), [(0.0, [1]), (5.9, [1]), (6.0, [1, 2])])
def test_what_is_encoded_together_later_is_warmed_up_together(batch_seconds: float, encoded: list[int]):
    """A batch has kernels of its own; one clip more than may be encoded at once could be one too many."""
    extractor = Extractor(batch_seconds)
    _warm_up(extractor)
    assert extractor.encoded == encoded
    assert extractor.finished == sum(encoded)
