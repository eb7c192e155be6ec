"""Both clients behind one face, so that every test holds for both. Knows the fake registry, no network."""

import asyncio
import inspect
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

import speaker_registry
from speaker_registry import AsyncRegistryClient, RegistryClient
from speaker_registry.cli import main
from tests.unit.sdk.fake_registry import URL, FakeRegistry, FakeTime


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A developer's own registry, key, contexts or proxy must not decide a test, and stay as they are."""
    for name in list(os.environ):
        if (
            name.startswith("SPEAKER_REGISTRY_")
            or name.lower().endswith("_proxy")
            or name.startswith("SSL_CERT")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SPEAKER_REGISTRY_CONFIG", str(tmp_path / "kept" / "config.toml"))


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


class Blocking:
    """The async client, called as if it were the blocking one."""

    def __init__(self, client: AsyncRegistryClient, runner: asyncio.Runner) -> None:
        self._client, self._runner = client, runner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        return self._waiting_for(attribute) if callable(attribute) else attribute

    def __repr__(self) -> str:
        return repr(self._client)

    def _waiting_for(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            waits = inspect.isawaitable(result) or inspect.isasyncgen(result)
            return self._runner.run(_finished(result)) if waits else result

        return call


async def _finished(result: Any) -> Any:
    if inspect.isasyncgen(result):
        return [item async for item in result]
    return await result


Connect = Callable[..., Any]


@pytest.fixture(params=["blocking", "async"])
def connect(request: pytest.FixtureRequest, registry: FakeRegistry, time: FakeTime) -> Iterator[Connect]:
    """Makes a client of the fake registry, by default on the fake clock; closes it afterwards."""
    clients = []
    with asyncio.Runner() as runner:

        def make(url: str | None = URL, **options: Any) -> Any:
            options = {"transport": httpx.MockTransport(registry), "clock": time, **options}
            if request.param == "blocking":
                clients.append(RegistryClient(url, **{"sleep": time.sleep, **options}))
            else:
                clients.append(
                    Blocking(AsyncRegistryClient(url, **{"sleep": time.asleep, **options}), runner)
                )
            return clients[-1]

        yield make
        for client in clients:
            client.close()


on_one_client = pytest.mark.parametrize("connect", ["blocking"], indirect=True)
"""Marks tables of what the code that both clients share makes of a call or of an answer. Other tests show
that both use it.
"""


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


Run = Callable[..., Outcome]


@pytest.fixture
def run(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line against the fake registry."""

    def connected(**options: Any) -> speaker_registry.RegistryClient:
        defaults = {"transport": httpx.MockTransport(registry), "retries": 0, "sleep": lambda _: None}
        return client_class(**{**defaults, **options})

    client_class = speaker_registry.RegistryClient
    monkeypatch.setattr(speaker_registry, "RegistryClient", connected)
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", URL)

    def call(*words: str) -> Outcome:
        return Outcome(main(words), *capsys.readouterr())

    return call
