"""Tests of what callers see of a Redis that is not well."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
import redis
from structlog.testing import capture_logs

from services.shared.telemetry.logs import LogThrottle
from services.shared.view import redis_access
from services.shared.view.redis_access import Breaker, SilentServerError, connect, unavailable_without_redis
from speaker_registry.errors import Unavailable
from tests.queue_workers import wait_until
from tests.redis_commands import count_sent
from tests.threads import no_more_threads


def assert_unavailable(client: redis.Redis) -> BaseException | None:
    """Returns the cause."""
    with pytest.raises(Unavailable) as caught, unavailable_without_redis():
        client.ping()
    return caught.value.__cause__


def test_a_silent_server_costs_one_caller_a_moment_and_no_other(monkeypatch: pytest.MonkeyPatch):
    """If each caller waited, every thread would soon wait for the server, also those that could do without
    it. After the first command none is sent, though the server is probed again and again.
    """
    monkeypatch.setattr(redis_access, "ANSWER_SECONDS", 60.0)  # only the breaker ends a wait
    monkeypatch.setattr(redis_access, "SUSPECT_SECONDS", 0.1)
    monkeypatch.setattr(redis_access, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(redis_access, "OPEN_SECONDS", 0.05)  # probes are none of the callers' business
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        clients = [connect(url), connect(url)]
        sent = count_sent(monkeypatch)
        for _ in range(100):
            for client in clients:
                assert_unavailable(client)
        assert len(sent) == 1


def test_those_who_wait_already_are_told_as_well(monkeypatch: pytest.MonkeyPatch):
    """Each request under way would else hold a thread for all of `ANSWER_SECONDS`."""
    monkeypatch.setattr(redis_access, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(redis_access, "SUSPECT_SECONDS", 0.1)
    monkeypatch.setattr(redis_access, "PROBE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        with ThreadPoolExecutor(10) as callers:
            causes = list(callers.map(lambda _: assert_unavailable(client), range(10)))
    assert {type(cause) for cause in causes} == {SilentServerError}, "nobody waited for their own time-out"


def test_a_server_that_lets_nobody_connect_is_silent_too(monkeypatch: pytest.MonkeyPatch):
    """A full queue of connections, or a network that drops everything. Once that is known, nobody tries to
    connect.
    """
    monkeypatch.setattr(redis_access, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(redis_access, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        address = full.getsockname()
        for _ in range(3):
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)
            with suppress(BlockingIOError):
                caller.connect(address)
        client = connect(f"redis://127.0.0.1:{address[1]}/0")
        wait_until(lambda: isinstance(assert_unavailable(client), SilentServerError))
        causes = [assert_unavailable(client) for _ in range(50)]
    assert {type(cause) for cause in causes} == {SilentServerError}


def test_a_breaker_closes_when_a_probe_is_answered():
    """Nobody but the prober waits, and what it finds counts for all."""
    answers, probed = iter([False, True]), threading.Event()
    let_go = threading.Event()

    def probe() -> bool:
        probed.set()
        assert let_go.wait(60)
        return next(answers)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(redis_access, "OPEN_SECONDS", 0.01)
        breaker = Breaker(probe)
        breaker.suspect()
        breaker.suspect()  # one probe at a time
        assert probed.wait(60)
        breaker.check()  # nothing is known yet
        let_go.set()
        until_closed(breaker)
    assert next(answers, None) is None


def until_closed(breaker: Breaker) -> None:
    wait_until(lambda: not breaker._probing)
    breaker.check()


def test_a_breaker_that_is_refused_a_thread_probes_the_next_time():
    """It would otherwise never probe again."""
    breaker, probed = Breaker(lambda: True), threading.Event()
    with no_more_threads():
        breaker.suspect()
    breaker._probe = lambda: probed.set() is None
    breaker.suspect()
    assert probed.wait(60)
    until_closed(breaker)


def test_a_refused_connection_opens_no_breaker():
    """A server that was killed is soon there again, and must not be kept waiting."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert redis_access._answers(f"redis://127.0.0.1:{port}/0")


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """Start a server. It sends what `answer` returns for the commands that come at a time."""

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while data := connection.recv(65536):
                connection.sendall(answer(data))

    def accept(server: socket.socket) -> None:
        with suppress(OSError):  # closed: the test is over
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"redis://somebody:s3cret@127.0.0.1:{server.getsockname()[1]}/0"


@contextmanager
def slow_server(ping_seconds: float = 0.0) -> Iterator[str]:
    """Answers every command at once but ECHO, which it never answers, and PING, which may take longer."""

    def answer(data: bytes) -> bytes:
        if b"ECHO" in data:
            return b""
        time.sleep(ping_seconds if b"PING" in data else 0.0)
        return b"+OK\r\n" * data.count(b"*")

    with answering(answer) as url:
        yield f"{url}?protocol=2"


def test_a_server_that_answers_late_is_not_taken_for_silent():
    """One on a busy machine is well, and whoever took it for silent answered uploads with 503. A probe that
    this machine itself held up is repeated.
    """
    with slow_server(ping_seconds=0.5) as url:
        wait_until(lambda: redis_access._answers(url))


def test_a_slow_command_does_not_open_the_breaker(monkeypatch: pytest.MonkeyPatch):
    """The server answers others: one command is slow, or one connection dead."""
    monkeypatch.setattr(redis_access, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(redis_access, "SUSPECT_SECONDS", 0.05)
    with slow_server() as url:
        slow, other = connect(url), connect(url)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(slow.echo, "hello")
            while not waiting.done():
                assert other.set("a", "b")
            with pytest.raises(redis.TimeoutError):
                waiting.result()


def test_a_server_that_cannot_be_reached_is_named_once():
    """Every request and every thread of housekeeping meets it: three lines a second told neither address nor
    cause.
    """
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    client = connect(f"redis://somebody:s3cret@127.0.0.1:{port}/0")
    with capture_logs() as logs:
        for _ in range(5):
            assert_unavailable(client)
    [line] = logs
    assert line["event"] == "redis.unreachable"
    assert line["setting"] == "SPEAKER_REDIS_URL"
    assert line["address"] == f"redis://…@127.0.0.1:{port}/0"
    assert "Connection refused" in line["cause"]
    assert "s3cret" not in str(line)


def test_a_silent_server_is_named_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redis_access, "SUSPECT_SECONDS", 0.05)
    monkeypatch.setattr(redis_access, "PROBE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, capture_logs() as logs:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        client = connect(url)
        for _ in range(5):
            assert_unavailable(client)
    assert [(line["event"], line["address"]) for line in logs] == [("redis.silent", url)]


def test_a_lost_connection_is_made_again_before_giving_up():
    """A server that restarts closes them all."""
    made: list[socket.socket] = []

    def close_all(hasty: socket.socket) -> None:
        with suppress(OSError):  # closed: the test is over
            while True:
                made.append(hasty.accept()[0])
                made[-1].close()

    with socket.create_server(("127.0.0.1", 0)) as hasty:
        threading.Thread(target=close_all, args=(hasty,), daemon=True).start()
        assert_unavailable(connect(f"redis://127.0.0.1:{hasty.getsockname()[1]}/0"))
    assert len(made) == 4


@pytest.mark.parametrize(
    "error",
    [
        "NOPERM User somebody has no permissions to run the 'info' command",
        "DENIED Redis is running in protected mode",
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "ERR max number of clients reached",
        "ERR DB index is out of range",
        "ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `somebody`, `s3cret`",
        "MOVED 3999 127.0.0.1:6381",
        "CROSSSLOT Keys in request don't hash to the same slot",
    ],
)
def test_a_refused_connection_makes_redis_unavailable(error: str, monkeypatch: pytest.MonkeyPatch):
    """Each request was answered 500, with a traceback. An old server quotes the password."""
    monkeypatch.setattr(redis_access, "_throttle", LogThrottle(60.0))  # other tests may have met the same
    with answering(lambda _: f"-{error}\r\n".encode()) as url, capture_logs() as logs:
        for _ in range(3):
            with (
                pytest.raises(Unavailable, match=r"refuses|lacks a right|does not have|cluster") as caught,
                unavailable_without_redis(),
            ):
                connect(url).ping()
            assert "s3cret" not in caught.value.message
    [line] = [line for line in logs if line["event"] in {"redis.unreachable", "redis.refused"}]
    assert line["setting"] == "SPEAKER_REDIS_URL"
    assert "s3cret" not in str(line)


def test_what_redis_says_is_logged_without_the_command(monkeypatch: pytest.MonkeyPatch):
    """Commands hold names and transcripts. Of a command in a pipeline redis-py quotes the beginning."""
    monkeypatch.setattr(redis_access, "_throttle", LogThrottle(60.0))
    refused = "Command # 2 (HSET sr:voice private) of pipeline caused error: WRONGTYPE wrong kind of value"
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(Unavailable, match="refuses commands"), unavailable_without_redis():
                raise redis.ResponseError(refused)
    [line] = logs
    assert (line["event"], line["cause"]) == ("redis.refused", "ResponseError: WRONGTYPE wrong kind of value")


@pytest.mark.parametrize(
    "error",
    [
        "ERR unknown command 'ECHO', with args beginning with: 'private' ",
        "ERR unknown command `ECHO`, with args beginning with: `private`, ",
        "ERR Unknown command called from script script: 4ca238f6, on @user_script:1.",
        "ERR Unknown Redis command called from script script: 4ca238f6, on @user_script:1.",
        "ERR Error running script: @user_script:1: Unknown Redis command called from Lua script",
    ],
)
def test_a_command_that_the_server_lacks_is_told_without_its_arguments(error: str):
    """Several hosted servers disable commands. Workers log errors as they are."""
    answers = {True: f"-{error}\r\n".encode()}
    with (
        answering(lambda data: answers.get(b"ECHO" in data, b"+OK\r\n" * data.count(b"*"))) as url,
        pytest.raises(Unavailable, match="does not have, or has disabled, a command") as caught,
        unavailable_without_redis(),
    ):
        connect(f"{url}?protocol=2").echo("private")
    assert "private" not in f"{caught.value} {caught.value.__cause__}"
