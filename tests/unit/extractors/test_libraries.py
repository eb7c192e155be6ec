"""What another library computes is part of what made an artifact."""

from collections.abc import Callable

import onnxruntime
import pytest
import scipy
import transformers

from services.extractor_worker.device.libraries import library_versions
from services.shared.model.fingerprint import Fingerprint
from tests.unit.extractors import cosyvoice3_tiny, higgs_audio_tiny, test_dac
from tests.unit.extractors.conftest import load_tiny

COMPUTED_BY = [
    pytest.param(lambda: load_tiny().fingerprint, transformers, id="qwen"),
    pytest.param(lambda: test_dac.load().fingerprint, transformers, id="dac"),
    pytest.param(lambda: higgs_audio_tiny.load_higgs().fingerprint, transformers, id="higgs"),
    pytest.param(lambda: higgs_audio_tiny.load_omnivoice().fingerprint, transformers, id="omnivoice"),
    pytest.param(lambda: cosyvoice3_tiny.load_ming().fingerprint, onnxruntime, id="ming"),
    pytest.param(lambda: cosyvoice3_tiny.load_cosyvoice().fingerprint, onnxruntime, id="cosyvoice"),
    pytest.param(lambda: cosyvoice3_tiny.load_cosyvoice().fingerprint, scipy, id="cosyvoice's tokens"),
]


@pytest.mark.parametrize(("fingerprint", "library"), COMPUTED_BY)
def test_another_minor_version_is_another_fingerprint(
    fingerprint: Callable[[], Fingerprint], library: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade may make other codes; a patch mends something."""
    found = {}
    for version in ("5.23.0", "5.23.7", "5.24.0", "5.24.0.dev0", "6.23.0"):
        monkeypatch.setattr(library, "__version__", version)
        found[version] = fingerprint().digest
    assert found["5.23.0"] == found["5.23.7"]
    assert found["5.24.0"] == found["5.24.0.dev0"]
    assert len(set(found.values())) == 3


def test_library_and_version_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.13.2")
    monkeypatch.setattr(onnxruntime, "__version__", "1.31.1")
    assert library_versions("transformers", "onnxruntime") == {"transformers": "5.13", "onnxruntime": "1.31"}
    assert library_versions() == {}
