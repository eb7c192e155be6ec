"""A registry for the tests of this folder that runs outside this process: two API processes and two workers
behind the proxy of the compose file. The worker processes do what a test asks of the stand-in worker.
"""

import hashlib
import itertools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import httpx

from services.registry_api.access.rules import NAMESPACE_HEADER
from services.registry_api.serving.long_polls import LongPolls
from services.shared.configuration.explanation import variable_of
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.registry.opened import Opened
from services.shared.registry.opening import open_registry
from services.shared.registry.publish import Attempt
from services.shared.view.job_records import JobRecord
from speaker_registry.schemas import FINISHED_STATES
from tests.deploy.composed import ComposedRegistry
from tests.integration.api.contract import Contract
from tests.integration.api.registry import PROFILE, WIDER, Registry, Stored
from tests.integration.api.worker import StandIn
from tests.processes import QUICK
from tests.queue_workers import wait_until

_numbers = itertools.count(1)
LOOKED_INTO_SECONDS = 0.3
"""A request that is not answered after this long is waiting."""

SERVED = ",".join((PROFILE, WIDER, "higgs-audio-v2"))


class ProxiedRegistry(Registry):
    """A registry of several processes behind a proxy. It is a context manager, like `Registry`, its model."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.composed = ComposedRegistry(
            folder, {**QUICK, "SPEAKER_EXTRACTOR_PROFILES": SERVED, **_named(settings)}
        )
        self._settings = settings
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        composed = self._stack.enter_context(self.composed)
        self.url = composed.url
        self.redis = self._stack.enter_context(composed.redis())
        store = composed.environment("worker")
        registry = RegistrySettings(
            redis_url=f"redis://127.0.0.1:{composed.redis_port}/0",
            redis_password=composed.password,
            **self._settings,
        )
        self.opened = open_registry(
            StoreSettings(
                url=store["SPEAKER_STORE_URL"],
                endpoint=store["SPEAKER_STORE_ENDPOINT"],
                access_key_id=store["SPEAKER_STORE_ACCESS_KEY_ID"],
                secret_access_key_file=store["SPEAKER_STORE_SECRET_ACCESS_KEY_FILE"],
            ),
            registry,
        )
        self._stack.callback(self.opened.close)
        self.worker = self._stack.enter_context(HeldWorkers(composed, self.opened))
        self.long_polls = cast(LongPolls, _Waiting(composed))
        self.client = self._stack.enter_context(self.new_client())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def empty_namespace(self) -> Iterator[Registry]:
        """Return the same registry, seen from a namespace that no other test uses."""
        seen = copy(self)
        seen.namespace = f"namespace-{next(_numbers)}"
        with seen.new_client() as seen.client:
            yield seen

    def new_client(self, **options: Any) -> httpx.Client:
        document = httpx.get(f"{self.url}/openapi.json", headers=self.composed.authorization).json()
        return httpx.Client(
            base_url=self.url,
            headers=self.composed.authorization | {NAMESPACE_HEADER: self.namespace},
            event_hooks={"response": [Contract(document).check]},
            timeout=30,
            limits=httpx.Limits(max_connections=None),
            **options,
        )

    def stored(self) -> Stored:
        """Return the stored state of the voices. What the processes announce about themselves is left out,
        because it changes all the time.
        """
        store = self.opened.store
        keys = [stored.key for stored in store.list("default/").objects]
        objects = {key: hashlib.sha256(store.get(key)).hexdigest() for key in keys}
        view = [f"sr:{self.generation()}:{kind}" for kind in ("s:default/*", "n:default", "c:default")]
        found = [key for pattern in view for key in self.redis.scan_iter(pattern)]
        return Stored(objects, {key: self.redis.dump(key) for key in found})


class HeldWorkers(StandIn):
    """The worker processes, suspended unless a test wants something finished. What no worker does on demand,
    such as failing, a stand-in does in their name.
    """

    def __init__(self, composed: ComposedRegistry, opened: Opened) -> None:
        super().__init__(opened)
        self._composed = composed
        self.fingerprint = opened.profile_records.fingerprint(PROFILE)

    def __enter__(self) -> Self:
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._composed.workers:
            os.kill(worker.pid or 0, number)

    @contextmanager
    def working(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def finish_all(self, name: str | None = None, *, namespace: str = "default") -> None:
        """Let the workers finish what is queued now."""
        queued = self.queued(name, namespace=namespace)
        with self.working():
            wait_until(lambda: all(self._has_ended(namespace, job.id) for job in queued))
        self.taken += [_taken(job) for job in queued]

    def _has_ended(self, namespace: str, job_id: str) -> bool:
        return self._opened.jobs.record(namespace, job_id).state in FINISHED_STATES


def _taken(job: JobRecord) -> Attempt:
    """Return the attributes of an attempt that tests read."""
    version = SimpleNamespace(name=job.name)
    provenance = SimpleNamespace(profile=SimpleNamespace(name=job.profile))
    return cast(Attempt, SimpleNamespace(version=version, provenance=provenance))


def _named(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of RegistrySettings as environment variables."""
    values = {
        name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in settings.items()
    }
    return {variable_of(RegistrySettings, name): value for name, value in values.items()}


class _Waiting:
    def __init__(self, composed: ComposedRegistry) -> None:
        self._composed = composed

    @property
    def waiting(self) -> int:
        """Return the number of requests that are waiting in any replica: those that were
        handed on a while ago.
        """
        handed_on = self._composed.sessions()
        time.sleep(LOOKED_INTO_SECONDS)
        return min(handed_on, self._composed.sessions())
