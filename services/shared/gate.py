"""Redis, as long as it is the server, and the run of it, that the index of our bucket was built on.

`BOOT` says which run that is. It is looked at on every new connection, before any other command, in every
script, and with every read: a restart, a fail-over, a roll-back or a flush cannot go unnoticed. Knows nothing
of what the index holds.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis.client import Pipeline
from redis.commands.core import Script

from services.shared import tracing
from services.shared.redis_access import connect, unavailable_without_redis
from speaker_registry.errors import Unavailable

BOOT = "sr:boot"
LAYOUT = 3
"""Of keys and fields. An index of another one is built anew, as that of another bucket is."""
_LUA = Path(__file__).parent / "lua"


class GateClosed(Unavailable):
    """The index is not the one this server's data was built into: read the facts, or wait for the rebuild."""

    def __init__(self) -> None:
        super().__init__("The index is being rebuilt; try again shortly.", retry_after_seconds=1)


class Gate:
    """Connections and scripts that work only while the index may be trusted."""

    def __init__(self, url: str, bucket: str) -> None:
        """`bucket`: the identity of the bucket whose facts the index shows."""
        self._bucket = bucket
        self._stamp = ""
        self.redis = connect(url, connect_hook=self._on_connect)
        """Its connections exist only while the gate is open."""
        self.ungated = connect(url)
        """For what must work while the gate is closed: rebuild, locks, health."""
        prelude = (_LUA / "_prelude.lua").read_text()
        self._scripts: dict[str, Script] = {
            path.stem: self.redis.register_script(prelude + path.read_text())
            for path in _LUA.glob("[a-z]*.lua")
        }

    def close(self) -> None:
        self.redis.close()
        self.ungated.close()

    @property
    def stamp(self) -> str:
        """Of the server that was trusted last."""
        return self._stamp

    def gate_open(self) -> bool:
        """Whether the index may be trusted. Raises `Unavailable` if the server cannot be reached."""
        with unavailable_without_redis():
            return self.ungated.get(BOOT) == self.server_stamp()

    def server_stamp(self) -> str:
        """Of the server that answers now."""
        with unavailable_without_redis():
            return self._stamp_of(self.ungated.info("server"))

    def call(self, script: str, keys: list[str], parameters: str, *, rebuilding: bool) -> Any:
        """Run one of `lua/`; with `rebuilding` whether the gate is open or not."""
        prepared = self._scripts[script]
        if rebuilding:
            return prepared(keys=keys, args=["", parameters], client=self.ungated)
        stamp = self._trusted_stamp()
        try:
            return prepared(keys=keys, args=[stamp, parameters])
        except redis.ResponseError:
            if stamp == self._stamp:
                raise
            # The server was replaced and its index rebuilt while the call was on its way: the new one is
            # good.
            return prepared(keys=keys, args=[self._stamp, parameters])

    def queue(self, pipeline: Pipeline, script: str, keys: list[str], parameters: str) -> None:
        """Put a call of one of `lua/` into a pipeline of `read`."""
        self._scripts[script](keys=keys, args=[self._trusted_stamp(), parameters], client=pipeline)

    def read(self, ask: Callable[[Pipeline], object]) -> list[Any]:
        """Answers to what `ask` puts into a pipeline, all from one moment.

        Raises:
            GateClosed, Unavailable.
        """
        with tracing.span("index.read", kind="client"), unavailable_without_redis():
            pipeline = self.redis.pipeline(transaction=True)
            pipeline.get(BOOT)
            ask(pipeline)
            boot, *answers = pipeline.execute()
        if boot != self._stamp:
            raise GateClosed
        return answers

    def _on_connect(self, connection: Any) -> None:
        """Before any other command of a new connection: whose data is this?"""
        connection.on_connect()
        connection.send_command("INFO", "server")
        stamp = self._stamp_of(connection.read_response())
        connection.send_command("GET", BOOT)
        if connection.read_response() != stamp:
            connection.disconnect()  # or the pool would hand it out as checked
            raise GateClosed
        self._stamp = stamp

    def _stamp_of(self, info: Any) -> str:
        """What `BOOT` holds once this run of the server has the index of our bucket."""
        text = f"run_id:{info['run_id']}" if isinstance(info, dict) else str(info)
        run_id = next(line.partition(":")[2] for line in text.splitlines() if line.startswith("run_id:"))
        return f"{run_id}/{self._bucket}/{LAYOUT}"

    def _trusted_stamp(self) -> str:
        if not self._stamp:
            self.redis.ping()  # the first connection tells
        return self._stamp
