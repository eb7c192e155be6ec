"""Runs the engines of other packages. These know only the contract in `speaker_registry.engine`."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor, tensors_held_by
from services.shared.audio import ReferenceAudio
from speaker_registry.engine import Engine


class ThirdPartyExtractor(TorchExtractor[Any, Any]):
    """An extractor whose three steps are those of an `Engine`."""

    def __init__(self, engine: Engine[Any, Any], loading: Loading) -> None:
        # Class attributes of built-in extractors: the base class reads them for the fingerprint.
        self.code_version = engine.code_version  # type: ignore[misc]
        self.always_float32 = engine.always_float32  # type: ignore[misc]
        self._engine = engine
        super().__init__(loading, **engine.fingerprint_inputs)

    def _prepare(self, clip: ReferenceAudio) -> Any:
        return self._engine.prepare(clip)

    def _encode(self, prepared: Any) -> Any:
        return self._engine.encode(prepared)

    def _finish(self, encoded: Any) -> Mapping[str, Tensor]:
        return self._engine.finish(encoded)

    def held_tensors(self) -> dict[str, Tensor]:
        """Return every tensor that the engine keeps between clips."""
        return tensors_held_by(self._engine)
