"""What callers see of a Redis that is not well."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
import redis

from services.shared import redis_access
from services.shared.redis_access import Silence, connect, unavailable_without_redis
from speaker_registry.errors import Unavailable


def test_a_server_that_says_nothing_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    """Every request in hand waits so long while it hangs: four times that would be a pile-up."""
    monkeypatch.setattr(redis_access, "ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(0)
        client = connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        with pytest.raises(Unavailable), unavailable_without_redis():
            client.ping()
        silent.accept()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_silent_server_costs_one_caller_its_time_and_no_other(monkeypatch: pytest.MonkeyPatch):
    """With a wait for each, every thread would soon hang on it, also those that could do without."""
    monkeypatch.setattr(redis_access, "ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url, silence = f"redis://127.0.0.1:{silent.getsockname()[1]}/0", Silence()
        clients = [connect(url, silence=silence), connect(url, silence=silence)]
        began = time.monotonic()
        for _ in range(20):
            for client in clients:
                with pytest.raises(Unavailable), unavailable_without_redis():
                    client.ping()
        assert time.monotonic() - began < 1


def test_a_server_that_lets_nobody_connect_is_silent_too(monkeypatch: pytest.MonkeyPatch):
    """A full queue of connections, or a network that drops everything."""
    monkeypatch.setattr(redis_access, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        address = full.getsockname()
        for _ in range(3):
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)
            with suppress(BlockingIOError):
                caller.connect(address)
        client = connect(f"redis://127.0.0.1:{address[1]}/0")
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(Unavailable), unavailable_without_redis():
                client.ping()
        assert time.monotonic() - began < 1


def test_who_refuses_a_connection_is_not_silent():
    """A server that was killed is soon there again, and must not be kept waiting."""
    silence = Silence()
    silence.begin(time.monotonic())
    silence._until = 0  # the next one asks
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(redis.ConnectionError):
        connect(f"redis://127.0.0.1:{port}/0", silence=silence).ping()
    with ThreadPoolExecutor() as others:
        others.submit(silence.check).result()


def test_a_slow_command_beside_others_that_are_answered_is_no_silence():
    """A client that blocks, or one connection that a proxy forgot."""
    silence = Silence()
    asked_at = time.monotonic()
    silence.end()  # somebody else's answer
    silence.begin(asked_at)
    silence.check()


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
        with pytest.raises(Unavailable), unavailable_without_redis():
            connect(f"redis://127.0.0.1:{hasty.getsockname()[1]}/0").ping()
    assert len(made) == 4
