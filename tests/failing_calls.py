"""A registry every call of which can be made to fail: calls to the store, to Redis and to the queue.

The store is in memory and has a time of its own. Redis and the queue are a real Valkey.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import redis

from services.registry_api.maintenance.garbage_sweep import sweep
from services.shared.bucket.layout import artifact_key, clip_key, documents_prefix, rendition_key
from services.shared.bucket.store import ObjectStore
from services.shared.model.document import Counts, SpeakerDocument
from services.shared.model.speaker import SpeakerId
from speaker_registry.errors import Unavailable
from tests.memory_store import MemoryStore
from tests.opened_registry import NS, MovableClock, OpenedRegistry, id_of

WAYS = ("not-done", "done-unanswered", "done-twice")
"""The ways in which a call goes wrong. The last one is no failure, because clients repeat a call whose answer
was lost.
"""


class Border:
    """A counter of all calls that leave the process. One of them can be made to go wrong."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._way = ""

    @contextmanager
    def failing(self, call: int, way: str) -> Iterator[Callable[[], bool]]:
        """Make the n-th call from now go wrong. Yield a function that says whether there was one."""
        self._left, self._way = call, way
        try:
            yield lambda: self._left <= 0
        finally:
            self._left = 0

    def cross(self, do: Callable[[], Any], error: Exception) -> Any:
        with self._lock:
            self._left -= 1
            goes_wrong = self._left == 0
        if not goes_wrong:
            return do()
        if self._way != "not-done":
            do()
        if self._way == "done-twice":
            return do()
        raise error


class BorderedStore:
    """A store in which each method is a call, and each object that is deleted is one of its own."""

    is_local = False

    def __init__(self, store: MemoryStore, border: Border) -> None:
        self._store = store
        self._border = border

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._cross(partial(self._store.delete, [key]))

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments: self._cross(partial(getattr(self._store, method), *arguments))

    def swap(self, key: str, data: bytes, *, etag: str | None) -> Any:
        return self._cross(partial(self._store.swap, key, data, etag=etag))

    def _cross(self, do: Callable[[], Any]) -> Any:
        return self._border.cross(do, Unavailable("The object store does not answer."))


def put_redis_at_border(client: redis.Redis, border: Border) -> None:
    """Count everything that is asked by this client, each command and each pipeline as one call."""
    execute, pipeline = client.execute_command, client.pipeline

    def make_pipeline(*arguments: Any, **options: Any) -> Any:
        made = pipeline(*arguments, **options)
        run = made.execute

        def execute_pipeline(**options: Any) -> Any:
            commands = list(made.command_stack)  # a pipeline is empty once it has run

            def do() -> Any:
                made.command_stack = list(commands)
                return run(**options)

            return border.cross(do, redis.ConnectionError("cut"))

        made.execute = execute_pipeline
        return made

    client.execute_command = lambda *arguments, **options: border.cross(
        partial(execute, *arguments, **options), redis.ConnectionError("cut")
    )
    client.pipeline = make_pipeline


def put_queue_at_border(dispatcher: Any, border: Border) -> None:
    for method in ("enqueue", "state", "remove", "draw"):
        does = getattr(dispatcher, method)

        def call(*arguments: Any, does: Callable[..., Any] = does) -> Any:
            return border.cross(partial(does, *arguments), Unavailable("The queue does not answer."))

        setattr(dispatcher, method, call)


class FailingRegistry(OpenedRegistry):
    """One process of a registry, with a worker that has announced its encoders."""

    def __init__(self, redis_url: str) -> None:
        self.border, clock = Border(), MovableClock()
        self.stored = MemoryStore(lambda: clock.now() + clock.ahead)
        store = cast(ObjectStore, BorderedStore(self.stored, self.border))
        super().__init__(store, redis_url, clock=clock)
        for script in self.opened.generation._scripts.values():
            self.redis.script_load(script.script)  # the first use of a script makes calls of its own
        for client in (self.opened.generation.redis, self.redis):
            put_redis_at_border(client, self.border)
        put_queue_at_border(self.opened.dispatcher, self.border)
        self.keeper = self.housekeeping(deleted_grace_seconds=0)
        self.worker.announce()

    def pass_time(self, seconds: float) -> None:
        self.opened.clock.sleep(seconds)

    def work(self, name: str) -> None:
        """Do the jobs of a voice that the queue delivers, also those that a worker had begun."""
        for job in self.find(name).open_jobs:
            if self.opened.dispatcher.state(job.job_id, job.profile) in {"waiting", "alive"}:
                attempt = self.worker.take(id_of(name), job.job_id, job.profile)
                if attempt is not None:
                    self.worker.publish(attempt)

    def settle(self, *names: str) -> None:
        """Do what housekeeping and workers do later, until nothing is left to do."""
        waiting = list(names)
        for _ in range(9):
            self.pass_time(2)
            waiting = [name for name in waiting if self.keeper.check(id_of(name)) is not None]
            if not waiting:
                return
            for name in waiting:
                self.work(name)
        raise AssertionError(f"{waiting} never came to rest")

    def sweep(self, name: str) -> int:
        """Collect the garbage of a voice, as a daily sweep does."""
        self.pass_time(86_400)
        return sweep(self.speakers, self.opened.blobs, id_of(name))

    def check_settled(self, name: str) -> None:
        """Check that a voice is at rest: the view shows its document, every version is ready, nothing is open
        or announced, and the bucket holds what the document names and nothing else.
        """
        found, document = self.find(name), self.document(name)
        assert (found.document, found.open_jobs) == (document, ())
        assert self.speakers.agenda.announced(id_of(name)) == {}
        assert all(self.opened.profiles.is_complete(found, version) for version in document.versions)
        assert document.dead == ()
        assert set(self.files(name)) == set(_named(id_of(name), document))

    def check_sums(self) -> None:
        """Check that names and counts of the view are what the documents say."""
        keys = [stored.key for stored in self.stored.list(documents_prefix(NS)).objects]
        documents = [SpeakerDocument.parse(self.stored.get(key)) for key in keys]
        live, counts = [one for one in documents if one.live], [one.counts for one in documents]
        assert self.view.names(NS, limit=999) == sorted(str(one.key) for one in live)
        pinned = sorted(str(one.key) for one in live if one.about.pinned)
        assert self.view.names(NS, limit=999, pinned=True) == pinned
        assert self.speakers.usage_so_far(NS) == Counts(
            voices=len(live),
            bytes=sum(one.bytes for one in counts),
            text_bytes=sum(one.text_bytes for one in counts),
            deleted_bytes=sum(one.deleted_bytes for one in counts),
            deleted_text_bytes=sum(one.deleted_text_bytes for one in counts),
        )


def _named(speaker_id: SpeakerId, document: SpeakerDocument) -> Iterator[str]:
    """Yield the keys of the bytes of all live versions."""
    for version in document.versions:
        if version.clip is not None:
            yield clip_key(speaker_id, version.vuid)
            yield rendition_key(speaker_id, version.vuid)
        for made in version.artifacts.values():
            yield from (artifact_key(speaker_id, version.vuid, one.object) for one in made)
