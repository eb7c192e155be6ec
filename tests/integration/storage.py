"""The storage without HTTP: the real operations, publisher and housekeeper on a real Valkey and a real local
folder. Time is moved on by the test; any call that leaves the process can be made to fail.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import redis

from services.registry_api.keys.forget import sweep
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_uses import KeyUses
from services.registry_api.maintenance.housekeeping import Housekeeper
from services.registry_api.operations import Operations
from services.registry_api.operations.registration import Registered, Upload
from services.shared.audio import DecodedClip, ReferenceAudio
from services.shared.bucket.blobs import read_artifact
from services.shared.bucket.documents import Documents
from services.shared.bucket.epochs import Epochs
from services.shared.bucket.facts import read_speaker, truth_of
from services.shared.bucket.folder_store import FolderStore
from services.shared.bucket.identity import bucket_identity
from services.shared.bucket.keys import SpeakerId
from services.shared.configuration.settings import HousekeepingSettings, RegistrySettings
from services.shared.index.jobs import JobRecord, Jobs
from services.shared.index.leases import Leases
from services.shared.index.profile_events import ProfileEvents
from services.shared.index.refusals import Undecided
from services.shared.index.speaker_index import DIRTY, WINDOW_SECONDS, ClaimResult, SpeakerIndex
from services.shared.model.clock import Clock
from services.shared.model.domain import Speaker, SpeakerVersion
from services.shared.model.profiles import ProfileCatalogue
from services.shared.queue.dispatch import RqDispatcher
from services.shared.registry.opening import open_queue_connection
from services.shared.registry.parts import RegistryParts
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.publication import Attempt, Provenance, Publisher
from services.shared.registry.served import ServedEncoders
from services.shared.registry.shared_documents import SharedDocuments
from services.shared.view.generation import Generation
from services.shared.view.workers import Workers
from speaker_registry.errors import Unavailable
from speaker_registry.names import parse_speaker_name
from tests.encoders import make_current

PROFILE = "qwen3-tts-0.6b"
WIDER = "qwen3-tts-1.7b"
NAMESPACE = "default"
FINGERPRINT, NEXT_FINGERPRINT = "sha256:" + "1" * 64, "sha256:" + "2" * 64


class OwnTime(Clock):
    """The real clock, except that sleeping takes no time. The store's clock moves with it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    def since_boot(self) -> float:
        return super().since_boot() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds

    def of_store(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead)


class Border:
    """A counter of all calls that leave the process. One of them can be made to fail."""

    WAYS = ("not-done", "done-unanswered", "done-twice")
    """The last kind of fault is no failure, because clients repeat a call whose answer was lost."""

    def __init__(self) -> None:
        self._left = 0
        self._way = ""

    @contextmanager
    def failing(self, call: int, way: str) -> Iterator[Callable[[], bool]]:
        """Make the n-th call from now fail. Yield a function that returns whether there was such a call."""
        self._left, self._way = call, way
        try:
            yield lambda: self._left <= 0
        finally:
            self._left = 0

    def cross(self, do: Callable[[], Any], error: Exception) -> Any:
        self._left -= 1
        if self._left != 0:
            return do()
        if self._way != "not-done":
            do()
        if self._way == "done-twice":
            return do()
        raise error


class BorderedStore(FolderStore):
    """A store in which each object that is deleted is a call of its own, as on S3."""

    border: Border

    def put(self, key: str, data: bytes) -> None:
        self._cross(lambda: super(BorderedStore, self).put(key, data))

    def get(self, key: str) -> bytes:
        return self._cross(lambda: super(BorderedStore, self).get(key))

    def read(self, key: str) -> Any:
        return self._cross(lambda: super(BorderedStore, self).read(key))

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        return str(self._cross(lambda: super(BorderedStore, self).swap(key, data, etag=etag)))

    def list(self, prefix: str) -> Any:
        return self._cross(lambda: super(BorderedStore, self).list(prefix))

    def listings(self, *arguments: Any, **options: Any) -> Any:
        return self._cross(lambda: super(BorderedStore, self).listings(*arguments, **options))

    def folders(self, prefix: str) -> Any:
        return self._cross(lambda: super(BorderedStore, self).folders(prefix))

    def delete(self, keys: Any) -> None:
        for key in keys:
            self._cross(lambda key=key: super(BorderedStore, self).delete([key]))

    def remove(self, *arguments: Any) -> None:
        self._cross(lambda: super(BorderedDispatcher, self).remove(*arguments))

    def _cross(self, do: Callable[[], Any]) -> Any:
        return self.border.cross(do, Unavailable("The object store is not available."))


class BorderedDispatcher(RqDispatcher):
    border: Border

    def enqueue(self, *arguments: Any) -> None:
        self._cross(lambda: super(BorderedDispatcher, self).enqueue(*arguments))

    def state(self, *arguments: Any) -> str:
        return self._cross(lambda: super(BorderedDispatcher, self).state(*arguments))

    def _cross(self, do: Callable[[], Any]) -> Any:
        return self.border.cross(do, Unavailable("The queue is not available."))


def put_at_border(client: redis.Redis, border: Border) -> None:
    """Count everything that the index asks of Redis, in commands or pipelines."""
    execute, pipeline = client.execute_command, client.pipeline

    def make_pipeline(*arguments: Any, **options: Any) -> Any:
        made = pipeline(*arguments, **options)
        run = made.execute

        def execute_pipeline(**options: Any) -> Any:
            commands = list(made.command_stack)  # the script is gone once it has run

            def do() -> Any:
                made.command_stack = list(commands)
                return run(**options)

            return border.cross(do, redis.ConnectionError("cut"))

        made.execute = execute_pipeline
        return made

    client.execute_command = lambda *arguments, **options: border.cross(
        lambda: execute(*arguments, **options), redis.ConnectionError("cut")
    )
    client.pipeline = make_pipeline


class NoEpochs(Epochs):
    """A bucket that keeps no epochs, to show what an index knows without its help."""

    def __init__(self) -> None:
        pass

    def known(self) -> int:
        return 0

    def look(self) -> None:
        pass

    def note(self, epoch: int) -> None:
        pass


class Storage:
    """Everything of one registry except its API and its encoders, as a context manager."""

    def __init__(self, folder: Path, redis_url: str, **settings: Any) -> None:
        self.clock = OwnTime()
        self.border = Border()
        self.raw = redis.Redis.from_url(redis_url, decode_responses=True)
        """A Redis client that bypasses the gate and every fault."""
        given = RegistrySettings(redis_url=redis_url, **settings)
        self.store = BorderedStore(folder, clock=self.clock.of_store)
        self.store.border = self.border
        identity = bucket_identity(self.store, self.clock)
        epochs = Epochs(self.store, self.clock)
        self.index = SpeakerIndex(redis_url, identity, truth_of(self.store), epochs, clock=self.clock.now)
        put_at_border(self.index.redis, self.border)
        put_at_border(self.index.ungated, self.border)
        dispatcher = BorderedDispatcher(open_queue_connection(given), job_seconds=60)
        dispatcher.border = self.border
        documents = Documents(self.store, self.clock)
        self.generation = Generation(redis_url, identity, documents, self.clock)
        shared = SharedDocuments(
            documents=documents,
            generation=self.generation,
            clock=self.clock,
            now=lambda: int(self.store.now().timestamp()),
        )
        leases, workers = Leases(self.index, self.clock), Workers(self.generation)
        told = ProfileEvents(self.index, leases, self.clock)
        put_at_border(self.generation.redis, self.border)
        put_at_border(self.generation._plain, self.border)
        self.parts = RegistryParts(
            store=self.store,
            documents=documents,
            generation=self.generation,
            shared=shared,
            index=self.index,
            leases=leases,
            profile_records=ProfileRecords(shared, self.clock, tell=told.tell, wait=told.settle),
            workers=workers,
            served=ServedEncoders(workers, self.clock),
            catalogue=ProfileCatalogue.load(given.profiles),
            dispatcher=dispatcher,
            settings=given,
            clock=self.clock,
        )
        self.operations = Operations.over(self.parts)
        self.keys = HeldKeys.over(self.parts, lambda do: do())
        self.key_uses = KeyUses(self.generation, self.clock)
        self.housekeeper = Housekeeper(
            self.parts,
            self.operations,
            HousekeepingSettings(deleted_grace_seconds=0),
            partial(sweep, self.keys, self.key_uses),
        )
        self.publisher = Publisher(
            store=self.store,
            index=self.index,
            profiles=self.parts.profile_records,
            clock=self.clock,
            promoter=self.operations.promoter,
        )
        self.fingerprint = FINGERPRINT

    def __enter__(self) -> Self:
        # First uses make calls of their own.
        for script in (*self.index._scripts.values(), *self.generation._scripts.values()):
            self.raw.script_load(script.script)
        self.generation.look()
        self.clock.ahead = -2 * WINDOW_SECONDS  # nothing that was reserved before it can land any more
        self.index.open()
        self.clock.ahead = 0.0
        self.housekeeper.rebuild()
        self.announce(FINGERPRINT)
        self.housekeeper.turn()  # the sweep that this asks for: it would settle whatever tests leave open
        return self

    def __exit__(self, *_: object) -> None:
        self.parts.close()
        self.raw.close()

    # -- what people do

    def register(self, name: str, *, number: int = 1, **said: Any) -> Registered:
        """Register a version. Every number has a clip of its own."""
        upload = Upload(name=parse_speaker_name(name), consent="cons_1", **said)
        return self.operations.registrations.register_clip(NAMESPACE, upload, *clip(number))

    def register_embedding(self, name: str, *, width: int = 1024, **said: Any) -> Registered:
        upload = Upload(name=parse_speaker_name(name), consent="cons_1", **said)
        return self.operations.registrations.register_embedding(
            NAMESPACE, upload, np.full(width, 0.25, np.float32)
        )

    def delete(self, name: str) -> None:
        self.operations.deletions.delete(NAMESPACE, name)

    def extract(
        self, name: str, version: SpeakerVersion, profile: str = PROFILE, *, force: bool = False
    ) -> ClaimResult:
        extractions = self.operations.extractions
        return extractions.ensure(speaker_id(name), version, [profile], force=force)[profile]

    def ready(self, name: str, **said: Any) -> Registered:
        """Register a version and extract it."""
        registered = self.register(name, **said)
        self.finish_all(name)
        return registered

    def served(self, name: str, profile: str = PROFILE) -> tuple[int, str] | None:
        """Return the number and digest that engines get for the bare name, its bytes checked, or None."""
        speaker = self.operations.speakers.look_up(speaker_id(name)).speaker
        record = speaker.default.artifact(profile, self.fingerprint) if speaker.live else None
        if record is None:
            return None
        read_artifact(self.store, speaker_id(name), speaker.default, record)
        return speaker.default.number, record.digest

    def speaker(self, name: str) -> Speaker:
        """Return the live speaker as callers find it."""
        return self.operations.speakers.find(NAMESPACE, name).speaker

    def truth(self, name: str) -> Speaker:
        """Return what the facts say, whatever the index does."""
        return read_speaker(self.store, speaker_id(name))

    # -- what workers do

    def announce(self, fingerprint: str, profiles: Iterable[str] | None = None) -> None:
        """Make all artifacts with an encoder from now on: those of all profiles, or of these."""
        self.fingerprint = fingerprint
        for profile in self.parts.catalogue.names if profiles is None else profiles:
            make_current(self.parts.profile_records, profile, fingerprint)

    def take(self, name: str | None = None) -> list[Attempt]:
        """Take every open job in the queue, oldest first, including those that a worker took and did not
        finish.
        """
        queue, jobs = self.parts.dispatcher, reversed(self.jobs(name, open_only=True))
        alive = [job for job in jobs if queue.state(job.id, job.profile) == "alive"]
        found = [
            self.publisher.take(job.id, self._id_of(job), self._provenance(job.profile)) for job in alive
        ]
        return [attempt for attempt in found if attempt is not None]

    def publish(self, attempt: Attempt) -> bool:
        """Publish the artifact of a job. Right after a loss of Redis it waits, as workers do."""
        try:
            return self.publisher.publish(attempt, tensors(attempt))
        except Undecided:
            self.clock.sleep(10)
            return self.publisher.publish(attempt, tensors(attempt))

    def finish_all(self, name: str | None = None) -> None:
        for attempt in self.take(name):
            self.publish(attempt)

    def _id_of(self, job: JobRecord) -> SpeakerId:
        return SpeakerId(job.namespace, job.slug)

    def _provenance(self, profile: str) -> Provenance:
        return Provenance(
            profile=self.parts.catalogue.get(profile),
            fingerprint=self.fingerprint,
            extractor={},
            untrained=False,
            worker="worker",
        )

    # -- what there is

    def jobs(self, name: str | None = None, *, open_only: bool = False) -> list[JobRecord]:
        """Return the jobs of one voice or of all, newest first."""
        slug = speaker_id(name).slug if name is not None else None
        found = Jobs(self.index).page(NAMESPACE, slug=slug, limit=1000).found
        return [job for job in found if not (open_only and job.finished)]

    def objects(self, name: str) -> list[str]:
        return [stored.key for stored in self.store.list(speaker_id(name).prefix).objects]

    # -- rest

    def settle(self) -> None:
        """Run the housekeeping that is due and the jobs that are queued until nothing is left.

        A voice with a damaged record is looked at again every five minutes.
        """
        for _ in range(20):
            self.clock.sleep(20)
            self.housekeeper.turn()
            self.finish_all()
            if not self.raw.zcount(DIRTY, "-inf", self.clock.now() + 100):
                return
        raise AssertionError(f"never settled: {self.raw.zrange(DIRTY, 0, -1)}")

    def sweep(self) -> None:
        """Collect what is garbage, as two daily sweeps do once every grace period has ended.

        The first one remembers what looks like garbage; the second one deletes it if it still does.
        """
        for _ in range(2):
            self.clock.sleep(2 * 86_400)
            self.housekeeper.turn()

    def check_settled(self, name: str) -> None:
        """Check that nothing is open, that the index agrees with the facts, and that everything wanted is
        there.
        """
        indexed, truth = self.index.load(speaker_id(name)), self.truth(name)
        assert indexed.pending_extractions == ()
        assert self.jobs(name, open_only=True) == []
        assert indexed.speaker.versions == truth.versions
        assert indexed.speaker.aliases == truth.aliases
        assert all(self.operations.statuses.state(indexed, version) == "ready" for version in truth.versions)


def speaker_id(name: str) -> SpeakerId:
    return SpeakerId.of(NAMESPACE, parse_speaker_name(name))


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def clip(number: int) -> tuple[bytes, DecodedClip]:
    """Return the bytes of a clip as uploaded, and what they decode to."""
    samples = np.full(19_200, number / 1000, np.float32)
    audio = ReferenceAudio(samples, 16_000)
    return f"clip {number}".encode(), DecodedClip(audio, "wav", "pcm_s16le", "audio/wav", 1)


def tensors(attempt: Attempt) -> dict[str, np.ndarray]:
    """Return tensors of the shapes that the profile requires, different for every attempt."""
    random = np.random.default_rng(int(digest(attempt.token.encode())[-8:], 16))
    return {
        "speaker_embedding": random.standard_normal(attempt.provenance.profile.embedding_width or 1).astype(
            np.float32
        ),
        "ref_code": random.integers(0, 2048, (15, 16)).astype(np.int32),
    }


def at_once(count: int, do: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(do, range(count)))


def refuse(*_: object, **__: object) -> NoReturn:
    raise Unavailable("not now")


def lose_redis(storage: Storage, *, reconnect: bool = True) -> None:
    """Empty Redis, or replace it by an empty server, to which connections have to be made anew."""
    storage.raw.flushall()
    if reconnect:
        storage.index.redis.connection_pool.disconnect()


def held_before_its_fact(storage: Storage, name: str, **said: Any) -> Callable[[], Registered]:
    """Start an upload that has stored everything but its fact. Call the returned function to continue it."""
    put, held = storage.store.put, threading.Event()
    reached = threading.Event()

    def hold(key: str, data: bytes) -> None:
        if ".ver." in key and threading.current_thread().name == "slow":
            reached.set()
            assert held.wait(30)
        put(key, data)

    storage.store.put = hold  # type: ignore[method-assign]
    results: list[Any] = []

    def upload() -> None:
        try:
            results.append(storage.register(name, **said))
        except Unavailable as error:
            results.append(error)

    thread = threading.Thread(target=upload, name="slow")
    thread.start()
    assert reached.wait(30)

    def go_on() -> Registered:
        held.set()
        thread.join(30)
        (result,) = results
        if isinstance(result, Exception):
            raise result
        return result

    return go_on
