"""The versions of libraries that compute a part of an artifact are in its fingerprint."""

import onnxruntime
import pytest
import scipy
import transformers

from services.extractor_worker.device.libraries import library_versions
from tests.unit.extractors.tiny_engines import ENGINES

COMPUTED_BY = [
    ("qwen3-tts", transformers),
    ("dac", transformers),
    ("higgs-audio", transformers),
    ("ming-tts", onnxruntime),
    ("cosyvoice3", onnxruntime),
    ("cosyvoice3", scipy),
]


@pytest.mark.parametrize(("name", "library"), COMPUTED_BY)
def test_another_minor_version_is_another_fingerprint(
    name: str, library: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new minor version may make other codes. A patch release only fixes errors."""
    found = {}
    for version in ("5.23.0", "5.23.7", "5.24.0", "5.24.0.dev0", "6.23.0"):
        monkeypatch.setattr(library, "__version__", version)
        found[version] = ENGINES[name].load().fingerprint.digest
    assert found["5.23.0"] == found["5.23.7"]
    assert found["5.24.0"] == found["5.24.0.dev0"]
    assert len(set(found.values())) == 3


def test_library_and_version_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.13.2")
    monkeypatch.setattr(onnxruntime, "__version__", "1.31.1")
    assert library_versions("transformers", "onnxruntime") == {"transformers": "5.13", "onnxruntime": "1.31"}
    assert library_versions() == {}
