"""Fixtures with registries to call over HTTP: one for all tests of a file, and any number
for a single test.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.shared.audio import AudioDecoder
from services.shared.configuration.uploads import UploadLimits
from services.shared.view import generation, redis_access
from tests.integration.api.registry import Registry

_numbers = itertools.count(1)


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> Iterator[None]:
    """Log without colours, and without tracebacks that take seconds to draw."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ]
    )
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True, scope="session")
def patient_with_redis() -> Iterator[None]:
    """Wait 20 s for a probe of Redis. On a busy machine a healthy server may answer late, and would be taken
    for a silent one.
    """
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(redis_access, "PROBE_SECONDS", 20.0)
        yield


@pytest.fixture(autouse=True, scope="module")
def settled_views() -> Iterator[None]:
    """Have nothing wait for a view of before. Each registry begins its own, and nobody else reads it."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(generation, "SETTLED_SECONDS", 0.0)
        yield


@pytest.fixture(autouse=True, scope="module")
def unsynced_folders() -> Iterator[None]:
    """Leave it to the system when to write to the disk. The start of a registry alone waits a hundred times
    for the disk, and no test here cuts the power; `test_store_folder.py` proves that stores wait for it.
    """
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def decoder() -> Iterator[AudioDecoder]:
    with AudioDecoder(UploadLimits()) as decoder:
        yield decoder


@pytest.fixture(scope="module")
def registry(
    tmp_path_factory: pytest.TempPathFactory, valkey: ValkeyServer, decoder: AudioDecoder
) -> Iterator[Registry]:
    """A registry that the tests of a file share. Each test uses names of its own."""
    with Registry(tmp_path_factory.mktemp("bucket"), empty(valkey, 1), decoder) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A voice name that no other test uses."""
    return f"voice-{next(_numbers)}"


Start = Callable[..., Registry]


@pytest.fixture
def start(tmp_path: Path, valkey: ValkeyServer, decoder: AudioDecoder) -> Iterator[Start]:
    """Return a function that starts empty registries for one test alone."""
    with ExitStack() as stack:

        def make(redis_url: str | None = None, folder: Path | None = None, **settings: Any) -> Registry:
            number = next(_numbers)
            url = redis_url or empty(valkey, 2 + number % 10)
            bucket = folder or tmp_path / f"bucket-{number}"
            return stack.enter_context(Registry(bucket, url, decoder, **settings))

        yield make


def empty(valkey: ValkeyServer, database: int) -> str:
    """Return the URL of an empty database of its own in the shared server."""
    url = re.sub(r"(db=|/)0$", rf"\g<1>{database}", valkey.url)
    with Redis.from_url(url) as client:
        client.flushdb()
    return url
