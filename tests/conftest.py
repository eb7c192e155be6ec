"""Shared parts of several test folders: a real Valkey, the markers that go with each folder, and Hypothesis'
settings. This module knows no domain.
"""

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import certifi
import pytest
import structlog
from hypothesis import HealthCheck, settings
from redis import Redis

from services.embedded.valkey import ValkeyServer

HERE = Path(__file__).parent

# Test processes run side by side, and a library's threads beyond the cores only wait for each other: with two
# threads in each of two processes, an encoder of published size took three times as long.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell starts a command in the background with SIGINT ignored. Python keeps it ignored, and so does every
# process that a test starts, which would then wait for Ctrl-C in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a slow or busy processor an example takes any time, and so does drawing it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


PROCESS_FIXTURES = {"valkey", "decoder"}
"""Fixtures that start a process. They are shared, so that only the first test to use one would be seen to."""
PROCESS_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Names of Python's audit events."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder and their fixtures, so that no one has to remember it."""
    for item in items:
        if {HERE / "integration", HERE / "simulation"} & set(item.path.parents):
            item.add_marker(pytest.mark.integration)
        fixtures = set(getattr(item, "fixturenames", ()))
        if PROCESS_FIXTURES & fixtures:
            item.add_marker(pytest.mark.processes)
        if "goldens" in fixtures:
            item.add_marker(pytest.mark.goldens)


_quick = threading.local()
"""Its `test` is the name of the unit test that runs in this thread, if that test may not start a process."""


def _refuse_processes(event: str, _: tuple[object, ...]) -> None:
    if event in PROCESS_STARTS and (test := getattr(_quick, "test", None)):
        raise AssertionError(f"{test} starts a process ({event}), so it needs the marker `processes`.")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep `make test-quick` quick: a unit test that it runs fails, in every run, if it starts a process."""
    unit = HERE / "unit" in item.path.parents and HERE / "unit/extractors" not in item.path.parents
    _quick.test = item.nodeid if unit and not item.get_closest_marker("processes") else None
    try:
        return (yield)
    finally:
        _quick.test = None


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


@pytest.fixture(autouse=True)
def keeps_the_signals() -> Iterator[None]:
    """Give each test the handlers of signals that a process begins with. A worker that runs in the test
    process installs its own, and a later test would wait for a KeyboardInterrupt in vain.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let HTTP clients know one certificate authority. Reading all of them takes each client 25 ms, and no
    test calls a server that needs one.
    """
    end = "-----END CERTIFICATE-----\n"
    first, *_ = Path(certifi.where()).read_text("utf-8").partition(end)
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(first + end)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(certifi, "where", lambda: str(file))
        yield


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


_folder_seconds: Counter[str] = Counter()
"""Seconds of set-up, call and tear-down of all tests, by folder."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _folder_seconds[str(PurePosixPath(report.location[0]).parent)] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what each folder costs, because seconds that nobody sees become minutes."""
    terminalreporter.section("seconds per folder")
    for folder, seconds in _folder_seconds.most_common():
        terminalreporter.line(f"{seconds:8.1f}s {folder}")
