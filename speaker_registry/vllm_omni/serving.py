"""Finds the API servers of a vLLM-Omni process, and pins their requests to versions.

The class of the servers is wrapped where it is defined. If its module is not imported yet, the wrapping waits
for the import, because worker processes never import it.
"""

import asyncio
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from speaker_registry.vllm_omni.uploads import Server, UploadedVoices

log = logging.getLogger(__name__)

MODULE = "vllm_omni.entrypoints.openai.serving_speech"
_SERVER = "OmniOpenAIServingSpeech"
_INIT = "_init_speaker_storage"
_TAKE_REQUESTS = ("_validate_tts_request", "_prepare_speech_generation", "_apply_uploaded_speaker")
"""The methods that look up the uploaded voice of a request. Their first argument is the request."""
_PINS = "_speaker_registry_voices"
_LOOP_SECONDS = 10.0
AddServer = Callable[[Server, "Loop"], UploadedVoices]


class Loop:
    """Runs functions between two steps of the event loop in which it was made.

    A server that was made outside a loop has no requests yet whose steps could be disturbed, so functions are
    run at once.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    def run(self, function: Callable[[], None]) -> None:
        """Run a function and return when it has run. Its error is raised here.

        Raises:
            TimeoutError: The loop has not run the function within ten seconds.
        """
        if self._loop is None or self._loop.is_closed():
            function()
            return
        asyncio.run_coroutine_threadsafe(_call(function), self._loop).result(_LOOP_SECONDS)


async def _call(function: Callable[[], None]) -> None:
    function()


def wrap_servers(add_server: AddServer) -> None:
    """Call `add_server` with each API server that this process makes from now on."""
    module = sys.modules.get(MODULE)
    if module is not None:
        _wrap(module, add_server)
    else:
        sys.meta_path.insert(0, _AfterImport(lambda imported: _wrap(imported, add_server)))


def _wrap(module: ModuleType, add_server: AddServer) -> None:
    server_class = getattr(module, _SERVER)
    made = getattr(server_class, _INIT)

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = made(self, *args, **kwargs)
        try:
            setattr(self, _PINS, add_server(self, Loop()))
        except Exception as error:  # noqa: BLE001 - the server must start, whatever is wrong here
            log.warning("The voices of the speaker registry are not offered: %s", error)
        return result

    setattr(server_class, _INIT, init)
    for name in _TAKE_REQUESTS:
        setattr(server_class, name, _pinning(getattr(server_class, name)))


def _pinning(method: Callable[..., Any]) -> Callable[..., Any]:
    """Pin the voice of a request before a method takes it. Coroutines are pinned when they are called."""

    @functools.wraps(method)
    def pinned(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        voices = getattr(self, _PINS, None)
        if voices is not None:
            voices.pin(request)
        return method(self, request, *args, **kwargs)

    return pinned


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with the module of the servers, once, after its import."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then
        self._lock = threading.Lock()

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE or not self._lock.acquire(blocking=False):
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._run(load, module)  # type: ignore[method-assign]
        return spec

    def _run(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        try:
            self._then(module)
        except Exception as error:  # noqa: BLE001 - the server must start, whatever is wrong here
            log.warning("The voices of the speaker registry are not offered: %s", error)
