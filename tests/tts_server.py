"""A TTS server without a model, for tests: processes that run vLLM-Omni 0.30's own code and the plugin.

As in vLLM-Omni, API processes resolve the voice of a request, and the process of the model looks it up in its
speaker cache. Its encoder is made up here, as is the load: each API process asks for voices in turn. Every
answer, and every look of a plugin at the registry, is reported to the test. Knows no expectations.

A clip and everything that is made of it tell a number (see `clip`), so that a test sees what belongs
together.
"""

import asyncio
import base64
import io
import itertools
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import numpy as np

from tests.queue_workers import wait_until

MODEL_TYPE, WIDTH, BOOKS = "qwen3_tts", 1024, 16
API_PROCESSES = ("api-0", "api-1")
MODEL_PROCESS = "model"
PROCESSES = (*API_PROCESSES, MODEL_PROCESS)
FOLLOWER = "speaker-registry"
"""The name of the plugin's thread."""
HIGHEST = 300
"""The greatest number that a clip can tell."""
_RATE, _FRAMES, _SAMPLES = 8_000, 13, 640
_REQUESTS_AT_A_TIME, _PAUSE_SECONDS = 2, 0.02


# Numbers and what tells them.


def clip(number: int) -> bytes:
    """Return a WAV file of noise whose length is one second and so many frames of the codec."""
    noise = np.random.default_rng(number).integers(-8000, 8000, _RATE + _SAMPLES * number, dtype=np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(_RATE)
        writer.writeframes(noise.tobytes())
    return file.getvalue()


def artifact(number: int) -> dict[str, np.ndarray]:
    """Return the tensors of a clip."""
    return {
        "speaker_embedding": np.full(WIDTH, number, np.float32),
        "ref_code": np.zeros((_FRAMES + number, BOOKS), np.int32),
    }


def number_of_samples(samples: int) -> int:
    return (samples - _RATE) // _SAMPLES


def number_of_codes(codes: Any) -> int:
    return len(codes) - _FRAMES


def number_of_url(data_url: str) -> int:
    """Return the number that a clip tells which vLLM-Omni has written as a URL."""
    with wave.open(io.BytesIO(base64.b64decode(data_url.partition(",")[2]))) as file:
        return number_of_samples(file.getnframes())


# The processes.


def report(**facts: Any) -> None:
    """Write one line, which no other process can tear apart. The process ends if nobody reads it any more."""
    line = json.dumps({"process": multiprocessing.current_process().name, **facts}) + "\n"
    try:
        os.write(sys.stdout.fileno(), line.encode())
    except BrokenPipeError:
        os._exit(1)


def observe_looks() -> None:
    """Have each look of the plugin of this process reported. One that left a voice out, which could not be
    fetched, ended with a fault.
    """
    from speaker_registry.vllm_omni.plugin import Plugin  # noqa: PLC0415 - as late as vLLM-Omni imports it

    look, numbers = Plugin.look, itertools.count()

    def observed(self: Any) -> None:
        facts: dict[str, Any] = {"look": next(numbers), "began": time.monotonic()}
        report(**facts)
        look(self)
        report(**facts, ended=time.monotonic(), fault=self._last_fault or ", ".join(self._failed))

    Plugin.look = observed  # type: ignore[method-assign]


def observe_sockets() -> None:
    """Have each use of the network reported by a thread that does not follow the registry.

    Answering a request needs no network, so a request that asks the registry shows itself however fast the
    registry answers.
    """
    for name in ("connect", "connect_ex", "send", "sendall", "recv", "recv_into"):
        use = getattr(socket.socket, name)

        def observed(
            self: socket.socket, *arguments: Any, use: Callable[..., Any] = use, name: str = name
        ) -> Any:
            is_network = self.family in {socket.AF_INET, socket.AF_INET6}
            if is_network and threading.current_thread().name != FOLLOWER:
                report(network=name, thread=threading.current_thread().name)
            return use(self, *arguments)

        setattr(socket.socket, name, observed)


def load_plugins(modules: Sequence[ModuleType]) -> None:
    """Load the plugins as vLLM-Omni does in each of its processes."""
    speaker_cache, serving_speech, _, plugins = modules
    for name in ("vllm_omni", "vllm_omni.utils"):
        sys.modules[name] = ModuleType(name)
    for module in (speaker_cache, serving_speech):
        sys.modules[module.__name__] = module
    plugins.envs = SimpleNamespace(VLLM_PLUGINS=None)
    for activate in plugins.load_omni_plugins_by_group(plugins.OMNI_DEFAULT_PLUGINS_GROUP).values():
        activate()


class Request(SimpleNamespace):
    """A request for speech. What it does not say is None."""

    def __getattr__(self, name: str) -> None:
        return None


def new_server(serving_speech: Any) -> Any:
    """Return vLLM-Omni's API server for Qwen3-TTS, without what needs a model."""
    server = object.__new__(serving_speech.OmniOpenAIServingSpeech)
    config = SimpleNamespace(
        tts_model_type="base", talker_config=SimpleNamespace(hidden_size=WIDTH), codec_frame_rate_hz=12.5
    )
    server.engine_client = SimpleNamespace(model_config=SimpleNamespace(model=None, hf_config=config))
    server._tts_model_type, server._diffusion_mode, server._adapter = MODEL_TYPE, False, None
    server._max_instructions_length = 500
    server._init_speaker_storage()
    return server


class ApiProcess:
    """Asks for the voices in turn, through vLLM-Omni's own ways, until the process is told to end."""

    def __init__(self, serving_speech: Any, voices: Sequence[str], model: Connection) -> None:
        self._serving_speech, self._voices, self._model = serving_speech, voices, model
        self._one_at_a_time = threading.Lock()
        self._ways = itertools.cycle([self._resolve_as_qwen3_tts, self._resolve_as_others])
        self._over = False

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, self, "_over", True)
        self._server = new_server(self._serving_speech)
        report(serves_since=time.monotonic())
        await asyncio.gather(*(self._ask_on(start) for start in range(_REQUESTS_AT_A_TIME)))
        voices = self._server.uploaded_speakers.items()
        report(offered=[(name, info["created_at"]) for name, info in voices])

    async def _ask_on(self, start: int) -> None:
        for voice in itertools.islice(itertools.cycle(self._voices), start, None):
            if self._over:
                return
            began = time.monotonic()
            answer = await self._ask(voice)
            report(voice=voice, began=began, ended=time.monotonic(), **answer)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self, voice: str) -> dict[str, Any]:
        request = Request(voice=voice, input="Hello.")
        resolve = next(self._ways)
        fault, params = await resolve(request)
        return {"fault": fault} if fault else await asyncio.to_thread(self._generate, params)

    async def _resolve_as_qwen3_tts(self, request: Request) -> tuple[str | None, dict[str, Any]]:
        """Resolve the voice in the last of two steps."""
        fault = self._server._validate_tts_request(request)
        if fault is not None:
            return fault, {}
        await asyncio.sleep(_PAUSE_SECONDS)  # vLLM-Omni does other things here
        try:
            return None, self._server._get_tts_adapter()._build_tts_params(request)
        except ValueError as error:
            return str(error), {}

    async def _resolve_as_others(self, request: Request) -> tuple[str | None, dict[str, Any]]:
        """Resolve the clip and the text of the voice, and later its time, as adapters of other models do."""
        fault = self._server._apply_uploaded_speaker(request)
        if fault is not None or request.ref_audio is None:
            return fault or "unknown voice", {}
        await asyncio.sleep(_PAUSE_SECONDS)  # the clip is read here
        facts = {"speaker": request.voice, "voice_created_at": self._server._voice_created_at(request.voice)}
        facts |= {"ref_audio": request.ref_audio, "ref_text": request.ref_text, "x_vector_only_mode": False}
        return None, {name: [fact] for name, fact in facts.items()}

    def _generate(self, params: dict[str, Any]) -> dict[str, Any]:
        with self._one_at_a_time:
            self._model.send(params)
            answer: dict[str, Any] = self._model.recv()
            return answer


def run_model(cache: Any, apis: Sequence[Connection]) -> None:
    """Answer requests from the speaker cache until the process is told to end."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    while not over.is_set():
        for api in wait(apis, timeout=0.05):
            assert isinstance(api, Connection)
            api.send(generate(cache, api.recv()))
    report(held=[(name, created_at) for _, name, created_at in cache._cache])


def generate(cache: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Look a voice up as vLLM-Omni's prompt builder does. What is missing is encoded and kept."""
    # The voice of a request may be withdrawn before its last step. Then it brings no clip, text and mode, and
    # gets what is in the cache, or a fault.
    mode = "xvec" if params.get("x_vector_only_mode", [False])[0] else "icl"
    key = cache.make_cache_key(params["speaker"][0], f"{MODEL_TYPE}_{mode}", params["voice_created_at"][0])
    found = cache.get(key)
    url = params.get("ref_audio", [None])[0]
    if found is None and url is None:
        return {"fault": "requested without ref_audio, but no precomputed cache entry was loaded"}
    slot = found
    if slot is None:
        slot = {**encode(number_of_url(url)), "ref_text": params["ref_text"][0]}
        cache.put(key, slot)
    codes = number_of_codes(slot["ref_code"])
    return {
        "hit": found is not None,
        "speaker": int(slot["ref_spk_embedding"][0]),
        "codes": codes,
        "clip": codes if url is None else number_of_url(url),
        "text": params.get("ref_text", [slot["ref_text"]])[0],
        "cached_text": slot["ref_text"],
    }


def encode(number: int) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - the test that imports this file does not need it

    tensors = {name: torch.from_numpy(one) for name, one in artifact(number).items()}
    return {
        "ref_spk_embedding": tensors["speaker_embedding"],
        "ref_code": tensors["ref_code"],
        "icl_mode": True,
    }


def main(*voices: str) -> None:
    """Run until the standard input ends. vLLM-Omni's code is loaded once, because that takes seconds."""
    from tests.vllm_omni_readers import load  # noqa: PLC0415 - the test that imports this file does not need it

    modules = load(
        "vllm_omni.utils.speaker_cache",
        "vllm_omni.entrypoints.openai.serving_speech",
        "vllm_omni.entrypoints.openai.tts_adapters.qwen3_tts",
        "vllm_omni.plugins",
    )
    pipes = [multiprocessing.Pipe() for _ in API_PROCESSES]

    def run_process(name: str) -> None:
        observe_looks()
        observe_sockets()
        load_plugins(modules)
        if name == MODEL_PROCESS:
            run_model(modules[0].get_speaker_cache(), [near for near, _ in pipes])
        else:
            api = ApiProcess(modules[1], voices, pipes[API_PROCESSES.index(name)][1])
            asyncio.run(api.run())

    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=run_process, args=(name,), name=name) for name in PROCESSES]
    for child in children:
        child.start()
    sys.stdin.read()
    for child in children:  # API processes first, because they wait for the model
        child.terminate()
        child.join(30)


# The test's end.


class TtsServer:
    """The server as a context manager. `reports` grows while it runs."""

    def __init__(self, url: str, folder: Path, profile: str, poll_seconds: float, *voices: str) -> None:
        self._command = [sys.executable, "-m", "tests.tts_server", *voices]
        self._environment = {
            **os.environ,
            "SPEAKER_REGISTRY_URL": url,
            "SPEAKER_REGISTRY_PROFILE": profile,
            "SPEAKER_REGISTRY_POLL_SECONDS": str(poll_seconds),
            "SPEAKER_SAMPLES_DIR": str(folder),
        }
        self.reports: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(120)
        finally:  # also those that wait for one that is gone
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._reader.join(30)
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.reports.append(json.loads(line))

    def of(self, process: str, fact: str) -> list[dict[str, Any]]:
        """Return the reports of a process that tell a fact.

        The facts are `look`, `serves_since`, `voice`, `network`, `held` and `offered`.
        """
        return [one for one in self.reports[:] if one["process"] == process and fact in one]

    def await_looks(self, *, fault: bool = False) -> None:
        """Wait until each process has begun a look from now on, and ended it well or with a fault."""
        self._await(
            1, PROCESSES, lambda one: "fault" in one and "look" in one and bool(one["fault"]) == fault
        )

    def await_requests_during_a_look(self, count: int) -> None:
        """Wait until each API process has answered so many requests within one look that has not ended.

        The registry must be silent, so that looks last. A request that waits for a look is never counted.
        """
        place = len(self.reports)

        def within(process: str) -> int:
            own = [one for one in self.reports[place:] if one["process"] == process]
            ends = [number for number, one in enumerate(own) if "look" in one]
            if not ends or "fault" in own[ends[-1]]:
                return 0
            began = own[ends[-1]]["began"]
            return sum("voice" in one and one["began"] > began for one in own[ends[-1] :])

        wait_until(lambda: all(within(process) >= count for process in API_PROCESSES), 120)

    def await_requests(self, count: int) -> None:
        """Wait until each API process has answered so many requests that begin from now on."""
        self._await(count, API_PROCESSES, lambda one: "voice" in one)

    def _await(self, count: int, processes: Sequence[str], fits: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until each process has reported so much that fits and that began from now on."""
        began, place = time.monotonic(), len(self.reports)

        def is_there() -> bool:
            new = [one for one in self.reports[place:] if one.get("began", 0.0) >= began and fits(one)]
            return all(sum(one["process"] == process for one in new) >= count for process in processes)

        wait_until(is_there, 120)


if __name__ == "__main__":
    main(*sys.argv[1:])
