"""Both clients behind one face, so that every test holds for both. Knows the fake registry, no network."""

import asyncio
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from speaker_registry import AsyncRegistryClient, RegistryClient
from tests.unit.sdk.fake_registry import URL, FakeRegistry, FakeTime


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own registry, key or proxy must not decide a test."""
    for name in list(os.environ):
        if (
            name.startswith("SPEAKER_REGISTRY_")
            or name.lower().endswith("_proxy")
            or name.startswith("SSL_CERT")
        ):
            monkeypatch.delenv(name)


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
