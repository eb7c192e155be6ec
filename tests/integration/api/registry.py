"""A whole registry for tests: the real application on a real Valkey and a local folder, served by uvicorn on
a free port of the loopback interface. Its worker is a stand-in that the test itself advances.
"""

import hashlib
import itertools
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import redis
import uvicorn

from services.registry_api.access.authentication import open_access
from services.registry_api.app import create_app
from services.registry_api.commands.wiring import campaigns_of, events_of, keys_of
from services.registry_api.dependencies import Services
from services.registry_api.keys.key_uses import KeyUses
from services.registry_api.maintenance.rebuild import rebuild
from services.registry_api.maintenance.settle import settle
from services.registry_api.operations.delete import delete
from services.registry_api.serving.limits import BodyTimeouts
from services.registry_api.serving.server import server_config
from services.shared.audio import AudioDecoder
from services.shared.configuration.access import AccessSettings, RateSettings
from services.shared.configuration.api import ApiSettings, HousekeepingSettings
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.configuration.uploads import UploadLimits
from services.shared.model.clock import Clock
from services.shared.model.speaker import SpeakerId
from services.shared.registry.opening import open_registry
from services.shared.view.leases import WAIT_SECONDS
from speaker_registry.names import parse_speaker_name
from tests.integration.api.contract import Contract
from tests.integration.api.worker import StandIn
from tests.unit.audio import clips

PROFILE = "qwen3-tts-0.6b"
WIDER = "qwen3-tts-1.7b"
CLIP = clips.wav(1.2)
OTHER_CLIP = clips.flac(1.6)
EMBEDDING = "[" + ",".join(["0.25"] * 1024) + "]"


_contracts: dict[bool, Contract] = {}
"""The contract of registries that require API keys, and of those that do not."""


@dataclass(frozen=True)
class Stored:
    """Everything that a registry keeps, in a form that can be compared."""

    objects: Mapping[str, str]
    """Key -> hash of the content."""
    keys: Mapping[bytes, object]
    """Redis key -> its value, in a form that can be compared."""


class _Leaping(Clock):
    """A clock on which each look is ten seconds after the one before."""

    def __init__(self) -> None:
        self._seconds = itertools.count(0, 10)

    def monotonic(self) -> float:
        return next(self._seconds)


class Registry:
    """A registry as a context manager: inside it, the registry answers at `url`, and `client` sends requests
    to it. `announced`: the provenance that the stand-in worker announces at the start. `access`: the settings
    for API keys; by default no keys are needed.
    """

    namespace = "default"

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
        max_active: int = 64,  # However slow this machine is, no request is refused.
        max_at_store: int = 16,
        rates: RateSettings | None = None,
        access: AccessSettings | None = None,
        kept_bytes: int = 16 * 1024**2,
        redirect_seconds: int = 0,
        heartbeat_seconds: float = 15.0,
        store: StoreSettings | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.redis = redis.Redis.from_url(redis_url)
        self._is_first = not folder.exists()
        registry = RegistrySettings(redis_url=redis_url, **settings)
        store = store or StoreSettings(url=folder.as_uri(), create_bucket=True)
        self.opened = open_registry(store, registry)
        self.keys = keys_of(self.opened)
        self.key_uses = KeyUses(self.opened.generation, self.opened.clock)
        self.worker = StandIn(self.opened)
        self._announced = announced
        self.campaigns = campaigns_of(self.opened)
        services = Services(
            **self.opened.by_name(),
            keys=self.keys,
            key_uses=self.key_uses,
            decoder=decoder,
            events=events_of(self.opened),
            campaigns=self.campaigns,
            housekeeping=None,
            limits=limits or UploadLimits(),
            deleted_grace_seconds=HousekeepingSettings().deleted_grace_seconds,
            access=open_access(
                ApiSettings(),
                access or AccessSettings(),
                rates or RateSettings(),
                self.keys,
                self.key_uses,
                self.opened.generation.plain,
            ),
        )
        self.long_polls = services.long_polls
        self.app = create_app(
            services,
            body_timeouts=body_timeouts or BodyTimeouts(),
            max_active=max_active,
            max_at_store=max_at_store,
            kept_bytes=kept_bytes,
            kept_answers=1000,
            redirect_seconds=redirect_seconds,
            heartbeat_seconds=heartbeat_seconds,
        )
        self._config = server_config(
            self.app, ApiSettings(), lane=self.app.state.parts.lane, head_seconds=head_seconds
        )
        self._stack = ExitStack()
        self.client: httpx.Client
        self.url = ""
        self.port = 0

    def __enter__(self) -> Self:
        self.opened.generation.check()
        if self._is_first:
            self._seem_old()
        self.rebuild()
        if self._announced:
            self.worker.announce()
        self.port = self._stack.enter_context(_served(self._config))
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = self._stack.enter_context(self.new_client())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.opened.close()
        self.redis.close()

    def new_client(self, **options: Any) -> httpx.Client:
        """Return a client that checks every answer against the OpenAPI document."""
        hooks = {"response": [self._contract().check]}
        limits = httpx.Limits(max_connections=None)
        return httpx.Client(base_url=self.url, event_hooks=hooks, timeout=30, limits=limits, **options)

    def _contract(self) -> Contract:
        """Return the contract of this registry's document. Registries share it, because building one takes a
        third of a second.
        """
        required = self.app.state.parts.services.access.required
        if required not in _contracts:
            _contracts[required] = Contract(self.app.openapi())
        return _contracts[required]

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
        """Upload a voice as a form and return the answer, whether or not it succeeds."""
        files = {} if clip is None else {"audio_sample": ("clip.wav", clip, "audio/wav")}
        data = {"name": name, "consent": consent, **fields}
        return self.client.post("/v1/audio/voices", data=data, files=files, params=params, headers=headers)

    def upload(self, name: str, **fields: Any) -> dict[str, Any]:
        """Upload a voice, which must succeed, and return `voice` of the answer."""
        response = self.post_voice(name, **fields)
        assert response.status_code == 200, response.text
        voice: dict[str, Any] = response.json()["voice"]
        return voice

    def ready(self, name: str, **fields: Any) -> dict[str, Any]:
        """Upload a voice and finish its artifact."""
        voice = self.upload(name, **fields)
        self.worker.finish_all(name, namespace=self.namespace)
        return voice

    def file(self, name: str, ref: int | str = "default", profile: str = PROFILE) -> httpx.Response:
        return self.client.get(f"/v1/voices/{name}/versions/{ref}/artifacts/{profile}/file")

    def rebuild(self) -> int:
        """Bring the view up to all documents. Returns how many it lacked."""
        self.opened.generation.check()  # Redis may have lost the view since the last look
        return rebuild(self.opened.store, self.opened.speakers)

    def _seem_old(self) -> None:
        """Have no change wait for leases on an earlier view: nobody has read this bucket before."""
        view = self.opened.generation
        number, since = view._first_seen
        view._first_seen = number, since - WAIT_SECONDS

    def forget_workers_at_once(self) -> None:
        """Have each answer look anew whether workers serve a profile."""
        self.opened.profiles._served._clock = _Leaping()

    def repair(self, name: str) -> None:
        """Look at a voice as a turn of housekeeping does."""
        settle(
            self.opened.speakers,
            self.opened.jobs,
            self.opened.profiles,
            SpeakerId.of("default", parse_speaker_name(name)),
        )

    def delete(self, name: str) -> None:
        """Delete a voice as another client does."""
        delete(self.opened.speakers, self.opened.jobs, self.namespace, parse_speaker_name(name), by="another")

    @property
    def plain_redis(self) -> redis.Redis:
        """A client that works whatever state the view is in."""
        return self.opened.generation.plain

    def generation(self) -> str:
        """Return the generation of the view in use."""
        return self.opened.generation.for_reading()

    def stored(self) -> Stored:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        objects = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        keys = {key: self.redis.dump(key) for key in self.redis.scan_iter()}
        for key in [key for key in keys if key.endswith((b":words", b":leases"))]:
            keys.pop(key, None)  # changes all the time
        return Stored(objects, keys)


@contextmanager
def _served(config: uvicorn.Config) -> Iterator[int]:
    """Serve the application and yield the port."""
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


class Led(httpx.BaseTransport):
    """Leads requests to a registry, whatever address they name, as a DNS entry does."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._network = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(host="127.0.0.1", port=self.registry.port)
        request.headers["host"] = f"127.0.0.1:{self.registry.port}"
        return self._network.handle_request(request)
