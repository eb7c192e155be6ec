"""Redis, as long as it holds the index that was begun on this run of the server for our bucket.

`BOOT` names the run of the server, how many keys it has evicted so far and the history of its data, the
bucket, the layout of the keys, and the *epoch* of the index. A server that was restarted, replaced, rolled
back or emptied, that took another's data over, or that threw keys away, does not hold what it should; nor
does one with an older epoch than the caller knows. The first caller who notices begins an index of a new
epoch there, which takes one script call. Nothing is known in it yet: `SpeakerIndex` admits each speaker when
it is needed. `BOOT` is looked at on every new connection, in every script, and with every read, so no loss
goes unnoticed. Data that were taken over from another server may hold the same `BOOT`: that is noticed by the
next `open`, which housekeeping calls every second. A server that the registry has worked without for a while
says nothing of it either: there the bucket tells (`epochs`). Knows nothing of what the index holds.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import structlog
from redis.client import Pipeline
from redis.commands.core import Script

from services.shared.bucket.epochs import Epochs
from services.shared.index.redis_access import connect, unavailable_without_redis
from services.shared.telemetry import tracing
from services.shared.telemetry.logs import LogThrottle
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

_throttle = LogThrottle(60.0)
_LEFT_BEHIND = (
    "an index was begun on another Redis since: every process of the registry has to use the same one"
)
BOOT = "sr:boot"
LAYOUT = 8
"""The layout of keys and fields. An index of a lower layout is begun anew. One of a higher layout belongs to
a newer release and is left to it: two releases would take the index from each other with every call.
"""
_LAST_SECOND = 99 * 10**8
"""This second is in the year 2283. Places follow the clock, 100 for each second, and have 12 digits."""
_SECTIONS = ("server", "stats", "replication")
"""The sections of INFO that contain the fields in `_HISTORY`."""
_HISTORY = ("run_id", "evicted_keys", "master_replid")
"""These fields of INFO tell one history of a server's data from another."""
_LUA = Path(__file__).parent / "lua"
_OPEN = (_LUA / "open.lua").read_text()


class GateClosed(Unavailable):
    """The index cannot be used now: it is being rebuilt, or its server does not accept writes."""

    def __init__(self) -> None:
        super().__init__("The index is being rebuilt; try again shortly.", retry_after_seconds=1)


class RedisTaken(GateClosed):
    """The server holds the index of another bucket, so another registry may be using it."""

    def __init__(self) -> None:
        Unavailable.__init__(
            self,
            "Redis holds the index of another bucket. Accepted: a Redis of its own for each registry, or "
            "this one once it has been emptied.",
            retry_after_seconds=60,
        )


class LayoutNewer(GateClosed):
    """The server holds an index that a newer release began, and whose keys this one cannot read."""

    def __init__(self, layout: str) -> None:
        Unavailable.__init__(
            self,
            f"Redis holds an index of layout {layout}, which a newer release has begun; this process knows "
            f"layout {LAYOUT}. Accepted: this process, once it is upgraded; or, to go back to its release, "
            "this Redis, once every process of the newer release is stopped and Redis is emptied (FLUSHDB).",
            retry_after_seconds=60,
        )


class ClockWrong(GateClosed):
    """An index that begins now would have no places left to give out."""

    def __init__(self) -> None:
        Unavailable.__init__(
            self,
            "The clock of this machine is centuries ahead, so it cannot begin an index. Accepted: a clock "
            f"before Unix second {_LAST_SECOND}.",
            retry_after_seconds=60,
        )


class InfoMissing(GateClosed):
    """The server's INFO lacks the fields that show whether it has lost data."""

    def __init__(self, missing: list[str]) -> None:
        Unavailable.__init__(
            self,
            f"The INFO of this Redis-compatible server lacks {' and '.join(missing)}, so a loss of data "
            "would stay unnoticed. Accepted: Valkey or Redis from 7.2, whose INFO has "
            f"{', '.join(_HISTORY)}.",
            retry_after_seconds=60,
        )


class Gate:
    """Connections and scripts that work only on the index of the present epoch."""

    def __init__(self, url: str, bucket: str, epochs: Epochs, clock: Callable[[], float] = time.time) -> None:
        """Connect to the Redis at `url`.

        Args:
            bucket: the identity of the bucket whose facts the index shows.
            epochs: the bucket's record of its indexes.
            clock: returns the time in Unix seconds.
        """
        self._bucket = bucket
        self.epochs = epochs
        self._clock = clock
        self._stamp = ""
        self.redis = connect(url, connect_hook=self._on_connect)
        """The connections of this client exist only while the gate is open."""
        self.ungated = connect(url)
        """This client serves calls that must work while the gate is closed: opening it, locks and health."""
        self._open = self.ungated.register_script(_OPEN)
        prelude = (_LUA / "_prelude.lua").read_text()
        self._scripts: dict[str, Script] = {
            path.stem: self.redis.register_script(prelude + path.read_text())
            for path in _LUA.glob("[a-z]*.lua")
            if path.stem != "open"
        }

    def close(self) -> None:
        self.redis.close()
        self.ungated.close()

    @property
    def stamp(self) -> str:
        """The value of `BOOT` when it was last looked at. Another value means another index."""
        return self._stamp

    @property
    def epoch(self) -> int:
        """The epoch of the index that was trusted last. No older index reserved a place beyond it."""
        return epoch_of(self._stamp)

    def gate_open(self) -> bool:
        """Return whether the index may be used. An index is begun if there is none.

        Raises `Unavailable` if the server cannot be reached.
        """
        try:
            self.open()
        except GateClosed:
            return False
        return True

    def queue(self, pipeline: Pipeline, script: str, keys: list[str], parameters: str) -> None:
        """Put a call of one of `lua/` into a pipeline of `read`."""
        self._scripts[script](keys=keys, args=[self._trusted_stamp(), parameters], client=pipeline)

    def open(self) -> str:
        """Trust the index on the server that answers now, and begin it if there is none. Returns its stamp.

        Raises:
            RedisTaken, LayoutNewer, ClockWrong, InfoMissing. GateClosed: the server does not accept writes.
            Unavailable: it or the bucket cannot be reached.
        """
        self.epochs.look()
        if self._stamp and self.epoch < self.epochs.known() and _throttle.due("left behind"):
            log.error("redis.left_behind", setting="SPEAKER_REDIS_URL", reason=_LEFT_BEHIND)
        with unavailable_without_redis():
            prefix = self._prefix_of(self.ungated.info(*_SECTIONS))
            try:
                boot = str(self._open(keys=[BOOT], args=self._opening(prefix)))
            except redis.ResponseError as error:
                raise _refusal(error) from error
        return self._trust(boot)

    def call(self, script: str, keys: list[str], parameters: str) -> Any:
        """Run one of `lua/` on the present index; on the next one, if this one was lost meanwhile."""
        prepared = self._scripts[script]
        try:
            return prepared(keys=keys, args=[self._trusted_stamp(), parameters])
        except redis.ResponseError as error:
            if not str(error).startswith("GATE"):
                raise
            return prepared(keys=keys, args=[self.open(), parameters])

    def read(self, ask: Callable[[Pipeline], object]) -> list[Any]:
        """Return the answers to the commands that `ask` puts into a pipeline, all from one moment.

        Raises `GateClosed`, `Unavailable`.
        """
        return self.read_epoch(lambda pipeline, _: ask(pipeline))[1]

    def read_epoch(self, ask: Callable[[Pipeline, int], object]) -> tuple[int, list[Any]]:
        """Read like `read`, for an `ask` that needs the index's epoch. Returns the epoch and the answers."""
        with tracing.span("index.read", kind="client"), unavailable_without_redis():
            for _ in range(2):
                stamp = self._trusted_stamp()
                pipeline = self.redis.pipeline(transaction=True)
                pipeline.get(BOOT)
                ask(pipeline, epoch_of(stamp))
                boot, *answers = pipeline.execute(raise_on_error=False)
                if boot == stamp:
                    return epoch_of(stamp), [_checked(answer) for answer in answers]
                self.open()
        raise GateClosed

    def _on_connect(self, connection: Any) -> None:
        """Check whose data the server holds, before any other command of a new connection."""
        connection.on_connect()
        connection.send_command("INFO", *_SECTIONS)
        info = connection.read_response()
        connection.send_command("GET", BOOT)
        boot = connection.read_response()
        try:
            prefix = self._prefix_of(info)
            if not str(boot or "").startswith(prefix) or epoch_of(str(boot)) < self._last_epoch:
                connection.send_command("EVAL", _OPEN, 1, BOOT, *self._opening(prefix))
                boot = connection.read_response()
            self._trust(str(boot))
        except (redis.ResponseError, Unavailable) as error:
            connection.disconnect()  # or the pool would hand it out as checked
            raise _refusal(error) from error

    def _trust(self, boot: str) -> str:
        self.epochs.note(epoch_of(boot))
        self._stamp = boot
        return boot

    @property
    def _last_epoch(self) -> int:
        """The latest epoch of all indexes that this process knows of, on whichever server they were begun."""
        return max(self.epoch, self.epochs.known())

    def _prefix_of(self, info: Any) -> str:
        """Return the prefix of `BOOT` on a server that still holds our index.

        `BOOT` begins with it if this run of the server has an index of our bucket, nothing of it was evicted,
        and the server has not taken over another one's data since. A replication id stands for one history of
        data: a server draws another when it stops being a replica. Raises `InfoMissing`.
        """
        # It draws another also when its first replica or a backup by `--rdb` begins a backlog, and when that
        # has expired (`repl-backlog-ttl`). That costs a rebuild for nothing, since nothing tells these from a
        # loss: the former id is not kept (`master_replid2` is zeros, as if there had been none), and neither
        # is it by a server that took over another one's older data and whose backlog has expired since.
        if not isinstance(info, dict):
            lines = (line.partition(":") for line in str(info).splitlines())
            info = {name: value for name, _, value in lines}
        history = [str(info.get(name, "")) for name in _HISTORY]
        if missing := [name for name, value in zip(_HISTORY, history, strict=True) if not value]:
            raise InfoMissing(missing)
        return f"{'.'.join(history)}/{self._bucket}/{LAYOUT}/"

    def _opening(self, prefix: str) -> list[str | float]:
        """Return the arguments of `lua/open.lua`. Raises `ClockWrong`."""
        if self._clock() > _LAST_SECOND:
            raise ClockWrong
        return [prefix, f"/{self._bucket}/", self._clock(), self._last_epoch, LAYOUT]

    def _trusted_stamp(self) -> str:
        if not self._stamp:
            self.redis.ping()  # the first connection tells
        return self._stamp


def _checked(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _refusal(error: redis.ResponseError | Unavailable) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    code, _, rest = str(error).partition(" ")
    if code == "NEWER":
        return LayoutNewer(rest)
    return RedisTaken() if code == "TAKEN" else GateClosed()


def epoch_of(stamp: str) -> int:
    return int(stamp.rpartition("/")[2] or 0)
