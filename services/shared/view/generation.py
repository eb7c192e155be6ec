"""The generation of the view in Redis: when a view is trusted, how a new one begins, and which processes are
left behind.

A generation is a random id. `_view.json` in the bucket names the generation in use, and a stamp in Redis
records it together with the server's history when it began. A view is trusted while both agree, the server
has the history in the stamp, and it still holds the word that this process wrote at its last check. Every
read and every script compares the stamp in the same call, so a server that restarts in the middle of a
request is not trusted.

A new generation is first named in `_view.json` and then in Redis. So a writer that still finds its own
generation in `_view.json` after its commit knows that every later generation will read the commit. This
module does not know what a view holds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import redis
import structlog
from redis.client import Pipeline
from redis.commands.core import Script

from services.shared.bucket.documents import SEND_AGAIN, Documents
from services.shared.model.clock import Clock
from services.shared.telemetry import tracing
from services.shared.telemetry.logs import LogThrottle
from services.shared.view.away import LeftBehind, RedisTaken, ViewAway
from services.shared.view.keys import FORMER, complete_key
from services.shared.view.redis_access import connect, unavailable_without_redis
from services.shared.view.stamp import SECTIONS, STAMP, Stamp, history_of
from services.shared.view.view_document import Named, ViewDocument
from services.shared.view.words import Words
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

_CHECK_SECONDS = 1.0
UNWATCHED_SECONDS = 5.0
"""If the last check is older than this, users of the view check it themselves, because the watching thread
may be stuck.
"""
_FAILED_CHECK_SECONDS = 0.2
"""For this long after a failed check, users of the view fail with the same error instead of checking again.
Checks run one after the other, and each takes 0.1 s while connections are refused. Otherwise a request for
hundreds of voices would keep all others waiting while Redis is away.
"""
SETTLED_SECONDS = 10.0
"""A change that takes something away from readers waits until its generation is this old. By then every
process has read `_view.json`, and none reads an earlier view. A process that is left behind waits for the
same time before it asks whether any process serves the generation.
"""
WATCHING = "view"
"""The name of the thread that checks the generation repeatedly."""
_BEGINNING_SECONDS = 0.2
"""Time after which a process looks again for a generation that its Redis lacks, before it counts as left
behind. Another process may have named the generation a moment ago, and be about to begin it.
"""
_END_SECONDS = 10.0
"""A process that ends waits at most this long for the watching thread, which may be waiting for a server."""
_TRIES = 5
_LUA = Path(__file__).parent / "lua"
_throttle = LogThrottle(60.0)


class Generation:
    """Connections and scripts that work only on the view in use."""

    def __init__(
        self,
        url: str,
        bucket: str,
        documents: Documents,
        clock: Clock,
        *,
        connect: Callable[..., redis.Redis] = connect,
        run_in_background: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Connect to the Redis at `url`. Nothing is contacted before the first `check`.

        Args:
            bucket: the identity of the bucket whose documents the view shows.
            run_in_background: runs a function without waiting for it. By default a thread does so.
        """
        self.bucket = bucket
        """The identity of the bucket whose documents the view shows. It survives every loss of the view."""
        self._document = ViewDocument(documents, clock, run_in_background)
        self._clock = clock
        self._lock = Lock()
        self._trusted = ""
        """The stamp of the view that may be used. Empty while there is none."""
        self._checked_at = float("-inf")
        self._failed: tuple[float, Unavailable] | None = None
        """The time and the error of the last check if it failed. None once a check has succeeded."""
        self._held = ""
        """The last generation that this process used."""
        self._unused: str | None = None
        """A generation that Redis has never held: it refused to write it, or the bucket did not say whether
        `_view.json` names it. It is begun as soon as possible. If Redis does not say whether it holds a
        generation, another one is named, because Redis may have had the first and lost it.
        """
        self._first_seen: tuple[str, float] = ("", 0.0)
        self._behind_since: float | None = None
        self.redis = connect(url, connect_hook=self._on_connect)
        """The connections of this client exist only while the view may be used."""
        self.plain = connect(url)
        """This client works in every state of the view. It is used for data that belongs to no generation."""
        self._words = Words(self.plain, clock)
        self._begin = self.plain.register_script((_LUA / "begin.lua").read_text())
        self._scripts = _scripts_of(self.redis)

    def close(self) -> None:
        self.redis.close()
        self.plain.close()
        self._document.close()

    def run(self, stop: Event) -> None:
        """Call `check` repeatedly until `stop` is set. Errors do not end this, because the next request
        raises them as well.
        """
        while not stop.wait(_CHECK_SECONDS):
            try:
                self.check()
            except Unavailable:
                pass
            except Exception:
                if _throttle.due("check failed"):
                    log.exception("view.check_failed")

    @property
    def last_used(self) -> str:
        """The generation that this process used last. Empty before the first."""
        return self._held

    @property
    def takes_writes(self) -> bool:
        """Whether Redis took this process's last word. It takes no writes while it is full or a replica."""
        return self._words.refusal is None

    # Using the view

    def for_reading(self) -> str:
        """Return the generation whose view may be used now. Raises `ViewAway`, or `Unavailable`."""
        if not self._is_checked():
            with self._lock:
                self._raise_recent_failure()
                if not self._is_checked():  # another thread may have checked meanwhile
                    self._check()
        trusted = self._trusted
        if not trusted:
            raise ViewAway
        return Stamp.parse(trusted).generation

    def _is_checked(self) -> bool:
        return bool(self._trusted) and self._clock.since_boot() - self._checked_at <= UNWATCHED_SECONDS

    def _raise_recent_failure(self) -> None:
        if self._failed is not None:
            at, error = self._failed
            if self._clock.since_boot() - at < _FAILED_CHECK_SECONDS:
                raise error.with_traceback(None)

    def read(self, ask: Callable[[Pipeline, str], object]) -> list[Any]:
        """Run the commands that `ask` puts into a pipeline for the generation in use, and return the answers.

        All answers are from one moment. Raises `ViewAway`, or `Unavailable`.
        """
        with tracing.span("view.read", kind="client"), unavailable_without_redis():
            for _ in range(2):
                generation, stamp = self.for_reading(), self._trusted
                pipeline = self.redis.pipeline(transaction=True)
                pipeline.get(STAMP)
                ask(pipeline, generation)
                with suppress(ViewAway):  # the server of a new connection has lost the view
                    found, *answers = pipeline.execute()
                    if stamp and found == stamp:
                        return answers
                self._distrust(stamp)
        raise ViewAway

    def call(
        self, script: str, generation: str, keys: list[str], arguments: Sequence[str | bytes | int | float]
    ) -> Any:
        """Run a script of `lua/` on a generation. Raises `ViewAway` if the generation is no longer in use."""
        stamp = self._trusted
        if not stamp or Stamp.parse(stamp).generation != generation:
            raise ViewAway
        with tracing.span(f"view.{script}", kind="client"), unavailable_without_redis():
            try:
                return self._scripts[script](keys=[STAMP, *keys], args=[stamp, *arguments])
            except redis.ResponseError as error:
                if not str(error).startswith("OVER"):
                    raise
                self._distrust(stamp)
                raise ViewAway from None

    def confirm(self, generation: str) -> None:
        """Check after a commit that `_view.json` still names this generation.

        Raises `Unavailable` otherwise: the commit stands, but a view that began meanwhile may lack it.
        """
        if self._document.read().generation != generation:
            self._distrust(self._trusted)
            raise ViewAway(f"The change was made, but the view in Redis was replaced meanwhile. {SEND_AGAIN}")

    def settle(self) -> None:
        """Wait until the generation is `SETTLED_SECONDS` old, so that no process reads an earlier view."""
        generation = self.for_reading()
        seen, since = self._first_seen
        if seen == generation:
            self._clock.sleep(max(0.0, since + SETTLED_SECONDS - self._clock.since_boot()))

    def is_younger_than(self, seconds: float) -> bool:
        """Return whether this process first saw the generation in use less than `seconds` ago."""
        seen, since = self._first_seen
        return seen != self.for_reading() or self._clock.since_boot() - since < seconds

    # Checking

    def check(self) -> None:
        """Check the stamp in Redis, and `_view.json` if that is due. Begins a new generation if this process
        is allowed to.

        Raises:
            LeftBehind, RedisTaken, ViewAway: the view cannot be used.
            Unavailable: Redis or the bucket cannot be reached, or Redis takes no writes now. In the last case
                the view may still be used for reading.
        """
        with self._lock, unavailable_without_redis():
            self._check()
            if self._words.refusal is not None:
                raise self._words.refusal

    def _check(self) -> None:
        """Do what `check` does, in a thread that holds the lock, and remember whether it failed."""
        try:
            with unavailable_without_redis():
                self._check_or_begin()
        except Unavailable as error:
            self._failed = (self._clock.since_boot(), error)
            raise
        self._failed = None

    def _check_or_begin(self) -> None:
        missed = None
        for _ in range(_TRIES):
            began = self._clock.since_boot()
            named, stamp, server = self._read_both()
            if stamp.bucket not in {"", self.bucket}:
                raise RedisTaken
            is_held = stamp.server == server and self._finds_its_word(stamp)
            if is_held and stamp.generation == named.generation:
                self._trust(stamp, began)
                self._document.answer(named)
                return
            self._trusted = ""
            if self._may_begin(named, stamp):
                self._begin_generation(named, stamp, server)
            elif self._behind_since is not None or missed == named.generation:
                self._be_left_behind(named)
            else:
                missed = named.generation
                self._clock.sleep(_BEGINNING_SECONDS)
        raise ViewAway

    def _read_both(self) -> tuple[Named, Stamp, str]:
        """Return the generation in `_view.json`, the stamp in Redis, and the server's current history.

        While the two agree, `_view.json` is read only when that is due, and nothing changes if it cannot be
        read or the store is slow.
        """
        server = history_of(self.plain.info(*SECTIONS))
        stamp = Stamp.parse(str(self.plain.get(STAMP) or ""))
        named = self._document.seen
        agrees = named is not None and str(stamp) == self._trusted and stamp.generation == named.generation
        if named is None or not agrees:
            return self._document.read(), stamp, server
        if self._document.is_due():
            self._document.refresh()
        return self._document.seen or named, stamp, server

    def _finds_its_word(self, stamp: Stamp) -> bool:
        return self._words.is_there(stamp.generation, used_last=stamp.generation == self._held)

    def _trust(self, stamp: Stamp, checked_at: float) -> None:
        self._checked_at = checked_at
        self._held, self._behind_since = stamp.generation, None
        if self._first_seen[0] != stamp.generation:
            self._first_seen = (stamp.generation, self._clock.since_boot())
        self._trusted = str(stamp)

    def _distrust(self, stamp: str) -> None:
        """Stop trusting the view of a stamp. The next use checks first."""
        if self._trusted == stamp:
            self._trusted = ""

    def _on_connect(self, connection: Any) -> None:
        """Check a new connection before its first command, because the server may have been replaced."""
        connection.on_connect()
        connection.send_command("INFO", *SECTIONS)
        server = history_of(connection.read_response())
        trusted = self._trusted
        if not trusted or Stamp.parse(trusted).server != server:
            connection.disconnect()  # otherwise the pool would treat it as checked
            self._distrust(trusted)
            raise ViewAway

    # Beginning

    def _may_begin(self, named: Named, stamp: Stamp) -> bool:
        """Return whether this process may begin a generation.

        It may if it has just started, if its own Redis lost that generation or never held it, or if no
        process answered its question for a minute.
        """
        is_starting = not self._held
        own = named.generation in {"", self._held, self._unused, stamp.generation}
        return is_starting or own or self._document.is_unanswered()

    def _begin_generation(self, named: Named, stamp: Stamp, server: str) -> None:
        """Name a new generation in the bucket and then in Redis. The caller checks again in any case."""
        generation = named.generation
        if generation != self._unused:
            generation = self._unused = self._unused or self._clock.new_id()
            if not self._document.begin(named, generation):
                return
        self._unused = None
        self._held = generation  # so this process may begin another one if this one is lost
        self._words.begin()
        begun = Stamp(server, self.bucket, generation)
        seen = str(stamp) if stamp.generation else ""
        keys = [STAMP, FORMER, complete_key(stamp.generation)]
        try:
            if self._begin(keys=keys, args=[seen, str(begun), stamp.generation]):
                log.info("view.begun", generation=generation)
        except redis.ResponseError:  # it answers, and has not begun the generation
            self._unused = generation
            raise

    def begin_replacement(self, generation: str) -> None:
        """End a generation whose copies contradict the bucket, and begin a new one.

        Nothing happens if the generation is no longer in use. Raises the same errors as `check`.
        """
        with self._lock, unavailable_without_redis():
            named, stamp, server = self._read_both()
            if generation == named.generation == stamp.generation:
                self._trusted = ""
                self._begin_generation(named, stamp, server)
        self.check()

    # Being left behind

    def _be_left_behind(self, named: Named) -> None:
        """Raise `LeftBehind`. After a while, ask in `_view.json` whether any process still serves the
        generation.
        """
        now = self._clock.since_boot()
        if self._behind_since is None:
            self._behind_since = now
        if _throttle.due("left behind"):
            log.error("view.left_behind", setting="SPEAKER_REDIS_URL")
        if now - self._behind_since > SETTLED_SECONDS:
            self._document.ask(named)
        raise LeftBehind


def _scripts_of(client: redis.Redis) -> dict[str, Script]:
    """Return the scripts that check the stamp before anything else, by the names of their files."""
    prelude = (_LUA / "_prelude.lua").read_text()
    paths = (path for path in _LUA.glob("[a-z]*.lua") if path.stem != "begin")
    return {path.stem: client.register_script(prelude + path.read_text()) for path in paths}


@contextmanager
def watched(generation: Generation) -> Iterator[None]:
    """Check a generation repeatedly in a background thread until the context ends."""
    stop = Event()
    thread = Thread(target=generation.run, args=(stop,), name=WATCHING, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_END_SECONDS)


def milliseconds(time: tuple[int, int]) -> int:
    """Convert the answer of Redis to TIME to ms."""
    return time[0] * 1000 + time[1] // 1000


def redis_milliseconds(generation: Generation) -> int:
    """Return the time by Redis' clock in ms, which is the same for all machines. Raises `ViewAway` or
    `Unavailable`.
    """
    [time] = generation.read(lambda pipeline, _: pipeline.time())
    return milliseconds(time)
