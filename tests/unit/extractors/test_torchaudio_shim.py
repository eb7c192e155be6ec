"""Only the module that needs torchaudio sees the stand-in for it."""

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from services.extractor_worker.features import torchaudio_shim
from services.extractor_worker.features.resample import SincHann
from services.extractor_worker.features.torchaudio_shim import import_with_torchaudio, resample
from tests.unit.extractors.signals import speechlike

NAME = "wants_torchaudio"
TRACE = """
import sys
import torchaudio
import torchaudio as another
from transformers.utils import is_torchaudio_available

SEEN_BY_OTHERS = "torchaudio" in sys.modules
AVAILABLE = is_torchaudio_available()
HALF = torchaudio.functional.resample
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that imports torchaudio."""
    (tmp_path / f"{NAME}.py").write_text(TRACE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    importlib.invalidate_caches()
    return NAME


@pytest.fixture
def no_torchaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the import of torchaudio fail."""
    monkeypatch.setitem(sys.modules, "torchaudio", None)  # its import raises ImportError


def torchaudio_imports() -> bool:
    program = "import torchaudio"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


@pytest.mark.usefixtures("no_torchaudio")
def test_the_module_gets_what_it_needs(module: str) -> None:
    """The stand-in has only `resample`, so that using any other function fails."""
    imported = import_with_torchaudio(module)
    assert imported.HALF is resample
    assert imported.another is imported.torchaudio
    assert [name for name in vars(imported.torchaudio.functional) if not name.startswith("_")] == ["resample"]


def test_no_other_module_sees_the_stand_in_even_during_the_import(module: str) -> None:
    """transformers checks for torchaudio in twenty places and remembers the answer."""
    before, answer = sys.modules.get("torchaudio"), find_spec("torchaudio")
    imported = import_with_torchaudio(module)
    assert sys.modules.get("torchaudio") is before
    assert ("torchaudio" in sys.modules) == imported.SEEN_BY_OTHERS
    assert (answer is not None) == imported.AVAILABLE
    assert find_spec("torchaudio") == answer


@pytest.mark.slow
def test_torchaudio_imports_afterwards_as_it_did_before() -> None:
    """This holds in a process that has loaded the tokenizer's module, too."""
    program = (
        "from services.extractor_worker.models import higgs_audio_codec\n"
        "higgs_audio_codec._encoder_class()\n"
        "import torchaudio\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (run.returncode == 0) == torchaudio_imports()
    if run.returncode:
        assert run.stderr.decode().strip().splitlines()[-1].startswith(("ModuleNotFoundError", "OSError"))


def test_a_real_torchaudio_is_used_where_there_is_one(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of TTS servers have torchaudio. There its own kernel is used."""
    real, functional = ModuleType("torchaudio"), ModuleType("torchaudio.functional")
    real.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    vars(functional)["resample"], vars(real)["functional"] = max, functional
    monkeypatch.setitem(sys.modules, "torchaudio", real)
    imported = import_with_torchaudio(module)
    assert imported.torchaudio is real
    assert imported.HALF is max


@pytest.mark.usefixtures("no_torchaudio")
def test_every_import_returns_the_same_module(module: str) -> None:
    """Two copies of a module would have two classes of one name."""
    imported = import_with_torchaudio(module)
    assert import_with_torchaudio(module) is imported
    assert importlib.import_module(module) is imported


@pytest.mark.usefixtures("no_torchaudio")
def test_a_module_that_fails_to_import_leaves_nothing_behind(tmp_path: Path, module: str) -> None:
    """The next import would take half a module for a whole one."""
    (tmp_path / f"{module}.py").write_text("import torchaudio.transforms\n")
    with pytest.raises(ImportError):
        import_with_torchaudio(module)
    assert module not in sys.modules


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        import_with_torchaudio("not_there_at_all")


def test_resampling_is_torchaudios_for_float32() -> None:
    """The kernel is built in float32. The goldens of test_higgs_audio.py show that this is right."""
    clips = torch.from_numpy(speechlike(0.3, 24_000)).reshape(1, 1, -1)
    ours = resample(clips, 24_000, 16_000)
    assert torch.equal(ours, SincHann(24_000, 16_000, torch.float32)(clips))
    assert not torch.equal(ours, SincHann(24_000, 16_000)(clips))
    assert resample(clips, 24_000, 24_000) is clips


def test_kernels_are_kept_up_to_a_limit() -> None:
    """Keeping a kernel for every rate would be a memory leak."""
    for rate in range(1, 2 * torchaudio_shim._MAX_KERNELS):
        resample(torch.zeros(1, 9), 1_000, 1_000 + rate * 100)
    assert torchaudio_shim._kernel.cache_info().currsize == torchaudio_shim._MAX_KERNELS
