"""A whole registry for tests: the real application on a real Valkey and a local folder, served by uvicorn on
a free port of the loopback interface. Its worker is a stand-in that the test itself moves on.
"""

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import redis
import uvicorn

from services.registry_api.access.authentication import open_access
from services.registry_api.app import create_app
from services.registry_api.dependencies import Services
from services.registry_api.keys.keyring import Keyring
from services.registry_api.maintenance.housekeeping import Housekeeper
from services.registry_api.operations.followed_jobs import FollowedJobs
from services.registry_api.serving.limits import BodyTimeouts
from services.registry_api.serving.long_polls import LongPolls
from services.registry_api.serving.server import server_config
from services.shared.audio import AudioDecoder
from services.shared.configuration.settings import (
    AccessSettings,
    ApiSettings,
    HousekeepingSettings,
    RateSettings,
    RegistrySettings,
    StoreSettings,
    UploadLimits,
)
from services.shared.registry.opening import open_parts
from services.shared.registry.registrar import Registrar
from tests.integration.api.contract import Contract
from tests.integration.api.worker import StandIn
from tests.unit.audio import clips

PROFILE = "qwen3-tts-0.6b"
WIDER = "qwen3-tts-1.7b"
CLIP = clips.wav(1.2)
OTHER_CLIP = clips.flac(1.6)
EMBEDDING = "[" + ",".join(["0.25"] * 1024) + "]"


_contracts: dict[str, Contract] = {}
"""By the settings of the registries whose documents they are."""


@dataclass(frozen=True)
class Stored:
    """Everything a registry keeps, to be compared."""

    objects: Mapping[str, str]
    """Key -> hash of the content."""
    keys: Mapping[bytes, object]
    """Redis key -> its value, in a form that can be compared."""


class Registry:
    """Context manager: inside it, the registry answers at `url`, and `client` asks it.

    announced: the stand-in worker says at the start what it makes artifacts with.
    access: whether keys are needed; they are not.
    """

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        decoder: AudioDecoder,
        *,
        limits: UploadLimits | None = None,
        body_timeouts: BodyTimeouts | None = None,
        head_seconds: float = 10,
        announced: bool = True,
        max_active: int = 64,  # however slow this machine is, nobody is refused
        max_at_store: int = 16,
        rates: RateSettings | None = None,
        access: AccessSettings | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.redis = redis.Redis.from_url(redis_url)
        registry = RegistrySettings(redis_url=redis_url, **settings)
        self.parts = open_parts(StoreSettings(url=folder.as_uri(), create_bucket=True), registry)
        self.registrar = Registrar(self.parts)
        self.keyring = Keyring(self.parts.store, self.parts.index, self.parts.clock, self.parts.run_all)
        self.jobs = FollowedJobs(self.parts, self.registrar)
        self.long_polls = LongPolls(redis_url, self.registrar.seen_jobs.hear)
        self.housekeeper = Housekeeper(self.parts, self.registrar, HousekeepingSettings(), self.keyring.sweep)
        self.worker = StandIn(self.parts, self.registrar)
        self._announced = announced
        self._settings = repr(
            (limits, body_timeouts, head_seconds, max_active, max_at_store, rates, access, settings)
        )
        self.app = create_app(
            Services(
                parts=self.parts,
                registrar=self.registrar,
                keyring=self.keyring,
                jobs=self.jobs,
                decoder=decoder,
                long_polls=self.long_polls,
                housekeeper=None,
                limits=limits or UploadLimits(),
                access=open_access(
                    ApiSettings(),
                    access or AccessSettings(),
                    rates or RateSettings(),
                    self.keyring,
                    self.parts.index,
                ),
            ),
            body_timeouts=body_timeouts or BodyTimeouts(),
            max_active=max_active,
            max_at_store=max_at_store,
        )
        self._config = server_config(self.app, ApiSettings(), head_seconds=head_seconds)
        self._stack = ExitStack()
        self.client: httpx.Client
        self.url = ""
        self.port = 0

    def __enter__(self) -> Self:
        self.housekeeper.rebuild()
        if self._announced:
            self.worker.announce()
        self.port = self._stack.enter_context(_served(self._config))
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = self._stack.enter_context(self.new_client())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.parts.index.close()
        self.redis.close()

    def new_client(self, **options: Any) -> httpx.Client:
        """Holds every answer against the OpenAPI document."""
        hooks = {"response": [self._contract().check]}
        limits = httpx.Limits(max_connections=None)
        return httpx.Client(base_url=self.url, event_hooks=hooks, timeout=30, limits=limits, **options)

    def _contract(self) -> Contract:
        """Of this registry's document. To make one takes a third of a second, and its settings decide it."""
        if self._settings not in _contracts:
            _contracts[self._settings] = Contract(self.app.openapi())
        return _contracts[self._settings]

    def post_voice(
        self,
        name: str,
        *,
        clip: bytes | None = CLIP,
        consent: str = "cons_1",
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: str,
    ) -> httpx.Response:
        """An upload as a form, whatever becomes of it."""
        files = {} if clip is None else {"audio_sample": ("clip.wav", clip, "audio/wav")}
        data = {"name": name, "consent": consent, **fields}
        return self.client.post("/v1/audio/voices", data=data, files=files, params=params, headers=headers)

    def upload(self, name: str, **fields: Any) -> dict[str, Any]:
        """One that must succeed. Returns `voice` of the answer."""
        response = self.post_voice(name, **fields)
        assert response.status_code == 200, response.text
        voice: dict[str, Any] = response.json()["voice"]
        return voice

    def ready(self, name: str, **fields: Any) -> dict[str, Any]:
        """A voice with its artifact."""
        voice = self.upload(name, **fields)
        self.worker.finish_all(name)
        return voice

    def file(self, name: str, ref: int | str = "default", profile: str = PROFILE) -> httpx.Response:
        return self.client.get(f"/v1/voices/{name}/versions/{ref}/artifacts/{profile}/file")

    def stored(self) -> Stored:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        objects = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        return Stored(objects, {key: self.redis.dump(key) for key in self.redis.scan_iter()})


@contextmanager
def _served(config: uvicorn.Config) -> Iterator[int]:
    """Yields the port."""
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                threading.Event().wait(0.005)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server did not stop"


def until(true: Callable[[], bool]) -> None:
    """Return when it is; an AssertionError if that takes too long."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
