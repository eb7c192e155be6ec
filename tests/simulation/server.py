"""The Redis server that may be replaced at any moment by one that knows nothing, or only what was true a
while ago.

`ModelledServer` is one running Valkey that plays all of them, each with an identity of its own;
`RestartedServer` is a Valkey that is really killed and started again.
"""

import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import redis

from services.embedded.valkey import ValkeyServer
from services.shared.index.speaker_index import SpeakerIndex


class Server(Protocol):
    url: str
    raw: redis.Redis
    """A client for looking without being noticed."""

    def identity(self, told: str) -> str:
        """Return what `BOOT` begins with on this server, given what a real server would make of it."""
        ...

    def remember(self) -> None:
        """Take the snapshot that a later roll-back goes to."""

    def replace(self, *, roll_back: bool) -> None:
        """Another server from here on. It takes writes."""

    def refuse_writes(self, *, as_replica: bool) -> None:
        """Refuse writes, as a replica or because the memory is full."""

    def take_writes(self) -> None:
        """Again."""


class ModelledServer:
    """Emptied when it is made: one at a time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.raw = redis.Redis.from_url(url)
        self.take_writes()
        self.raw.flushall()
        self.raw.script_flush("SYNC")
        self._run = 1
        self._snapshot: Mapping[bytes, bytes] = {}

    def identity(self, told: str) -> str:
        return f"run {self._run}/{told.partition('/')[2]}"

    def remember(self) -> None:
        # Locks would come back without their time to live.
        keys: list[Any] = sorted(key for key in self.raw.scan_iter() if not key.startswith(b"sr:lock:"))
        pipeline = self.raw.pipeline(transaction=False)
        for key in keys:
            pipeline.dump(key)
        self._snapshot = dict(zip(keys, pipeline.execute(), strict=True))

    def refuse_writes(self, *, as_replica: bool) -> None:
        if as_replica:
            self.raw.replicaof("127.0.0.1", 1)  # where nobody is: the data stays what it was
        else:
            self.raw.config_set("maxmemory", 1)

    def take_writes(self) -> None:
        self.raw.replicaof("NO", "ONE")
        self.raw.config_set("maxmemory", 0)

    def replace(self, *, roll_back: bool) -> None:
        self.take_writes()
        self._run += 1
        pipeline = self.raw.pipeline(transaction=False)
        pipeline.flushall()
        pipeline.script_flush("SYNC")
        for key, value in self._snapshot.items() if roll_back else ():
            pipeline.restore(key, 0, value)
        pipeline.execute()


class RestartedServer:
    """Killed with SIGKILL and started on its log, on an earlier copy of it, or on nothing."""

    def __init__(self, valkey: ValkeyServer) -> None:
        self._valkey = valkey
        self._log: Path = valkey.data_dir / "appendonlydir"
        self._copy: Path = valkey.data_dir / "copy"
        self.url = valkey.url
        self.raw = redis.Redis.from_url(valkey.url)
        self._remembers = False

    def identity(self, told: str) -> str:
        return told

    def remember(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._log, self._copy)
        self._remembers = True

    def refuse_writes(self, *, as_replica: bool) -> None:
        """Refuse writes because the memory is full. A replica draws another id when it stops being one, which
        is a loss.
        """
        self.raw.config_set("maxmemory", 1)

    def take_writes(self) -> None:
        self.raw.config_set("maxmemory", 0)

    def replace(self, *, roll_back: bool) -> None:
        self._valkey.kill()
        shutil.rmtree(self._log)
        if roll_back and self._remembers:
            shutil.copytree(self._copy, self._log)
        self._valkey.start()
        for key in self.raw.scan_iter("sr:lock:*"):  # their time to live is the world's, not this server's
            self.raw.delete(key)


def disconnect(index: SpeakerIndex) -> None:
    """Cut the connections of every client, as a replaced server does. A connection that is just being made
    waits for the bucket, and fails with its next command.
    """
    for client in (index.redis, index.ungated):
        pool: Any = client.connection_pool
        pool.disconnect(inuse_connections=False)
        for connection in pool._in_use_connections:
            if connection._sock is not None:
                with suppress(OSError):
                    connection._sock.shutdown(socket.SHUT_RDWR)
