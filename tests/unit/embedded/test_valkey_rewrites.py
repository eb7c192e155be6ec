"""Tests of the rewrites of the append-only file of a server that stands in for Valkey."""

from pathlib import Path
from typing import Any, Self

import pytest
import redis
from structlog.testing import capture_logs

from services.embedded.valkey import ValkeyServer


class StubClient:
    """A client of a server whose last rewrite ended with a status, and whose next one may be refused."""

    def __init__(self, status: str, refusal: redis.RedisError | None) -> None:
        self.status = status
        self.refusal = refusal
        self.rewrites = 0

    def from_url(self, *_: Any, **__: Any) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def info(self, _: str) -> dict[str, str]:
        return {"aof_last_bgrewrite_status": self.status}

    def bgrewriteaof(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.rewrites += 1


@pytest.mark.parametrize(
    ("status", "refusal", "warned"),
    [
        ("ok", None, []),
        ("err", None, ["the last rewrite failed"]),
        ("ok", redis.ConnectionError("away"), ["away"]),
    ],
)
def test_a_rewrite_that_fails_is_logged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    refusal: redis.RedisError | None,
    warned: list[str],
):
    """Erased texts stay in the file otherwise, and nobody knows."""
    client = StubClient(status, refusal)
    monkeypatch.setattr(redis, "Redis", client)
    with capture_logs() as logs:
        ValkeyServer(tmp_path, binary=Path("valkey-server")).rewrite_append_only_file()
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("valkey.log_not_rewritten", reason) for reason in warned
    ]
    assert client.rewrites == (refusal is None)
