"""Counts the commands that this process sends to Redis, for tests of servers that do not answer."""

import threading
from typing import Any

import pytest
from redis.connection import AbstractConnection

from services.shared.view.generation import WATCHING


def count_sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that grows with every command sent from now on. Probes of the circuit breaker are left
    out, and so are looks at the view and renewals of the process' lease.

    Returns:
        The name of the thread that sent each command.
    """
    sent: list[str] = []
    send = AbstractConnection.send_packed_command

    def counting(self: AbstractConnection, *arguments: Any, **options: Any) -> None:
        if not (thread := threading.current_thread().name).startswith(("redis-probe", WATCHING, "lease")):
            sent.append(thread)
        send(self, *arguments, **options)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", counting)
    return sent
