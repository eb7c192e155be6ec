"""vLLM-Omni's own readers of voices, from its published wheel. Nothing of them is rewritten here.

`make setup-all` installs the wheel without its dependencies, see tests/vllm-omni.txt. The files that hold the
readers are loaded as they are. Everything else that they import from vLLM and vLLM-Omni becomes a module of
empty classes, because it needs a GPU and is not called.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

WHEEL = Path(sys.prefix) / "vllm-omni"
LOGGER = "vllm_omni"
"""The logger of the readers. They report there, and nowhere else, that they skip a voice."""
_REAL = frozenset(
    {
        "vllm_omni.plugins",
        "vllm_omni.utils.speaker_cache",
        "vllm_omni.entrypoints.openai.serving_speech",
        "vllm_omni.entrypoints.openai.tts_adapters.capabilities",
        "vllm_omni.entrypoints.openai.tts_adapters.qwen3_tts",
        "vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_talker",
        "vllm_omni.model_executor.models.voxcpm2.voxcpm2_talker",
        "vllm_omni.model_executor.models.higgs_audio_v3.higgs_audio_v3_tokenizer",
    }
)
_NEEDED = frozenset(
    {
        "vllm_omni.entrypoints.openai.tts_adapters",
        "vllm_omni.entrypoints.openai.tts_adapters.base",
    }
)
"""Further modules that are loaded as they are, because the readers call them."""


class Readers(NamedTuple):
    plugins: Any
    """The module `vllm_omni.plugins`."""
    speaker_cache: Any
    """The module `vllm_omni.utils.speaker_cache`."""
    capabilities: Any
    """The module `vllm_omni.entrypoints.openai.tts_adapters.capabilities`."""
    qwen3_tts: Any
    """The module `vllm_omni.entrypoints.openai.tts_adapters.qwen3_tts`."""
    serving_speech: Any
    """The module `vllm_omni.entrypoints.openai.serving_speech`."""
    qwen3_tts_talker: Any
    """The module `vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_talker`."""
    voxcpm2_talker: Any
    """The module `vllm_omni.model_executor.models.voxcpm2.voxcpm2_talker`."""
    higgs_audio_v3_tokenizer: Any
    """The module `vllm_omni.model_executor.models.higgs_audio_v3.higgs_audio_v3_tokenizer`."""


@cache
def readers() -> Readers:
    """Load the readers. Modules of other names stay as they are."""
    return Readers(*load(*sorted(_REAL, key=_order)))


def load(*names: str) -> list[Any]:
    """Load some of the readers by their modules' names. All of them take seconds."""
    assert WHEEL.is_dir(), f"{WHEEL} is missing: `make setup-all` installs it"
    with _stubbed():
        return [importlib.import_module(name) for name in names]


def _order(name: str) -> int:
    return Readers._fields.index(name.rpartition(".")[2])


@contextmanager
def _stubbed() -> Iterator[None]:
    finder = _Finder()
    before = {name for name in sys.modules if _is_theirs(name)}
    assert not before, f"{sorted(before)} are imported already"
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_theirs(name)]:
            del sys.modules[name]


def _is_theirs(name: str) -> bool:
    return name.partition(".")[0] in {"vllm", "vllm_omni"}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the real files of the readers, and stubs for all other modules of vLLM and vLLM-Omni."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in _REAL | _NEEDED:
            file = WHEEL / name.replace(".", "/") / "__init__.py"
            if not file.exists():
                file = file.parent.with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if _is_theirs(name) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the stub empty."""


class _Stub(ModuleType):
    """A module that has an empty class of every name, and a logger where loggers are made."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "init_logger":
            return lambda _: logging.getLogger(LOGGER)
        return type(name, (), {"__init__": lambda self, *_, **__: None})
