"""What several test files share: a real Valkey, the marker that goes with the folder, Hypothesis' settings.
Knows no domain.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from redis import Redis

from services.embedded.valkey import ValkeyServer

HERE = Path(__file__).parent

# On a slow or busy processor an example takes any time, and so does drawing it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folder says what a test is: nobody has to remember a marker."""
    for item in items:
        if HERE / "integration" in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(autouse=True)
def keeps_the_logs() -> Iterator[None]:
    """No test may configure the logs of the test process: later tests would look for their lines in vain. A
    command that does so runs in a process of its own, or with `configure_logs` replaced.
    """
    yield
    configured = structlog.get_config()["cache_logger_on_first_use"]
    if configured:
        structlog.reset_defaults()
    assert not configured


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """One server per test process. A test that kills or stops a server starts its own."""
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def redis_client(valkey: ValkeyServer) -> Iterator[Redis]:
    """A client of an empty server."""
    with Redis.from_url(valkey.url) as client:
        client.flushall()
        yield client
