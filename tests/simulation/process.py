"""One process of the registry in the simulation: the real classes, put together as `__main__` does, on
simulated surroundings.

What leaves the process pauses first, and may fail there. Knows how the real objects are built, nothing of
what is done with them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import redis

from services.registry_api.maintenance.housekeeping import Housekeeper
from services.registry_api.operations import Operations
from services.shared.bucket.documents import Documents
from services.shared.bucket.epochs import Epochs
from services.shared.bucket.facts import truth_of
from services.shared.bucket.identity import bucket_identity
from services.shared.bucket.keys import SpeakerId
from services.shared.configuration.settings import HousekeepingSettings, RegistrySettings
from services.shared.index.leases import Leases
from services.shared.index.profile_events import ProfileEvents
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.speaker_index import SpeakerIndex
from services.shared.model.clock import Clock
from services.shared.model.profiles import ProfileCatalogue
from services.shared.queue.rq_jobs import profile_of
from services.shared.registry.parts import RegistryParts
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.publication import Provenance, Publisher
from services.shared.registry.served import ServedEncoders
from services.shared.registry.shared_documents import SharedDocuments
from services.shared.view.generation import Generation
from services.shared.view.workers import Workers
from speaker_registry.artifact import TensorSpec
from speaker_registry.engine import Profile, PublishedWeights
from tests.simulation.clips import decode
from tests.simulation.queue import ModelledJob, ModelledQueue
from tests.simulation.scheduler import current, pause
from tests.simulation.server import Server
from tests.simulation.store import ModelledStore, Nature


def _profile(name: str, width: int, *, ref_text_required: bool = False) -> Profile:
    return Profile(
        name=name,
        model_type=name,
        description=name,
        tensors={"speaker_embedding": TensorSpec(dtype="F32", shape=(width,))},
        sample_rate=16_000,
        ref_text_required=ref_text_required,
        weights=PublishedWeights(repo=name, licence="none", files={}),
    )


PROFILES = (_profile("ecapa", 4), _profile("codec", 6, ref_text_required=True))


class Surroundings(Nature, Protocol):
    """The world, as far as a process needs it."""

    store: ModelledStore
    queue: ModelledQueue
    server: Server
    takes_writes: bool
    """Redis does."""

    def random_bits(self, count: int) -> int: ...
    def sleep(self, seconds: float) -> None: ...
    def hold_lock(self, key: str, seconds: float) -> None: ...
    def saw_identity(self, identity: str) -> None: ...
    def saw_place_asked_for(self, vuid: str) -> None: ...
    def saw_claim(self, speaker_id: SpeakerId, claimed: Mapping[str, Any]) -> None: ...
    def tell_news(self) -> None: ...
    def tell_old_news(self, process: "Process") -> None: ...


class SimulatedClock(Clock):
    """The world's time, `skew` seconds wrong."""

    def __init__(self, world: Surroundings, skew: float) -> None:
        self._world = world
        self._skew = skew

    def now(self) -> float:
        return self._world.time + self._skew

    def monotonic(self) -> float:
        return self._world.time

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)

    def new_id(self) -> str:
        milliseconds, noise = int(self.now() * 1000), self._world.random_bits(74)
        value = milliseconds << 80 | 0x7 << 76 | (noise >> 62) << 64 | 0b10 << 62 | noise & (2**62 - 1)
        return f"{value:032x}"


class SimulatedIndex(SpeakerIndex):
    """The real index on the real server, whose identity and whose answers the world decides."""

    world: Surroundings

    def _prefix_of(self, info: Any) -> str:
        return self.world.server.identity(super()._prefix_of(info))

    def reserve_version(self, speaker_id: SpeakerId, **asked: Any) -> Any:
        self.world.saw_place_asked_for(asked["vuid"])
        return super().reserve_version(speaker_id, **asked)

    def claim(self, speaker_id: SpeakerId, **asked: Any) -> Any:
        try:
            claim = super().claim(speaker_id, **asked)
        finally:
            self.world.tell_news()
        if claim.outcome == "claimed":
            self.world.saw_claim(speaker_id, asked)
        return claim


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that processes are built of. Seeded mistakes replace some of them."""

    index: type[SimulatedIndex] = SimulatedIndex
    publisher: type[Publisher] = Publisher
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those of the registry that are not drawn."""
    housekeeping: Mapping[str, Any] = field(default_factory=dict)
    """Settings, unchecked."""
    remembers: bool = False
    """Whether API processes answer from memory."""


class Process:
    """`fingerprints`: of the profiles it extracts, if it is a worker."""

    def __init__(
        self,
        world: Surroundings,
        name: str,
        parts: Parts,
        settings: RegistrySettings,
        housekeeping: HousekeepingSettings,
        *,
        skew: float,
        fingerprints: Mapping[str, str],
    ) -> None:
        self.world = world
        self.name = name
        self.fingerprints = fingerprints
        self.up = False
        """It has started."""
        self.in_service = False
        """A worker takes jobs once it has announced what it makes."""
        self._parts = parts
        self._settings = settings
        self._housekeeping = housekeeping
        self._clock = SimulatedClock(world, skew)

    def start(self) -> None:
        """Do what `__main__` does first. Raises `Unavailable`."""
        identity = bucket_identity(self.world.store, self._clock)
        self.world.saw_identity(identity)
        self._build(identity)
        self.up = True
        self.world.tell_old_news(self)

    def stop(self) -> None:
        if self.up:
            self.opened.close()

    def _build(self, identity: str) -> None:
        world, parts, clock = self.world, self._parts, self._clock
        truth, epochs = truth_of(world.store), Epochs(world.store, clock)
        self.index = parts.index(world.server.url, identity, truth, epochs, clock=clock.now)
        self.index.world = world
        self._script_names = {script.sha: name for name, script in self.index._scripts.items()}
        for client in (self.index.redis, self.index.ungated):
            self._put_under_control(client)
        documents = Documents(world.store, clock)
        generation = Generation(world.server.url, identity, documents, clock)
        shared = SharedDocuments(
            documents=documents,
            generation=generation,
            clock=clock,
            now=lambda: int(world.store.now().timestamp()),
        )
        leases, workers = Leases(self.index, clock), Workers(generation)
        told = ProfileEvents(self.index, leases, clock)
        profiles = ProfileRecords(shared, clock, tell=told.tell, wait=told.settle)
        self.opened = RegistryParts(
            store=world.store,
            documents=documents,
            generation=generation,
            shared=shared,
            index=self.index,
            leases=leases,
            profile_records=profiles,
            workers=workers,
            served=ServedEncoders(workers, clock),
            catalogue=ProfileCatalogue(PROFILES, self._settings.profiles),
            dispatcher=self,
            settings=self._settings,
            clock=clock,
        )
        self.operations = Operations.over(self.opened)
        self.publisher = parts.publisher(
            store=world.store,
            index=self.index,
            profiles=profiles,
            clock=clock,
            promoter=self.operations.promoter,
            decode=decode,
        )
        self.housekeeper = Housekeeper(
            self.opened,
            self.operations,
            self._housekeeping,
            lambda: 0,
        )

    def provenance(self, profile: str) -> Provenance:
        return Provenance(
            profile=self.opened.catalogue.get(profile),
            fingerprint=self.fingerprints[profile],
            extractor={},
            untrained=False,
            worker=self.name,
        )

    # -- the Dispatcher that its extractions hand jobs to; RQ's connection has no gate

    def enqueue(self, job_id: str, queue: str, arguments: Mapping[str, Any]) -> None:
        profile = profile_of(queue)
        self._call_queue(f"enqueue {job_id}", lambda: self.world.queue.enqueue(job_id, profile, arguments))

    def state(self, job_id: str, profile: str) -> str:
        return str(
            self._call_queue(
                f"state of {job_id}", lambda: self.world.queue.state(job_id, self.world.time), repeatable=True
            )
        )

    def remove(self, job_id: str, queue: str) -> None:
        self._call_queue(f"remove {job_id}", lambda: self.world.queue.remove(job_id))

    def draw(self, speaker: str, vuid: str) -> bool:
        raise NotImplementedError(f"nobody looks at {vuid} of {speaker}")

    def finish(self, job: ModelledJob, holder: object, *, again: bool) -> None:
        """The worker is through with a job it took."""
        self._call_queue(
            f"finish {job.id}", lambda: self.world.queue.finish(job.id, holder, self.world.time, again=again)
        )

    def _call_queue(self, what: str, do: Callable[[], Any], *, repeatable: bool = False) -> Any:
        def ask() -> Any:
            if not repeatable and not self.world.takes_writes:
                raise redis.exceptions.OutOfMemoryError
            return do()

        with unavailable_without_redis():
            return self._call(what, ask, repeatable=repeatable)

    # -- what leaves the process towards Redis

    def _put_under_control(self, client: redis.Redis) -> None:
        patched: Any = client
        execute, pipeline = patched.execute_command, patched.pipeline

        def execute_command(*arguments: Any, **options: Any) -> Any:
            def do() -> Any:
                answer = execute(*arguments, **options)
                if answer and (held := _lock_of(arguments)):
                    self.world.hold_lock(*held)
                return answer

            return self._call(self._describe(arguments), do, repeatable=True)

        def make_pipeline(*arguments: Any, **options: Any) -> Any:
            made = pipeline(*arguments, **options)
            run = made.execute
            made.execute = lambda **options: self._call(
                " ".join(str(command[0][0]) for command in made.command_stack),
                lambda: run(**options),
                repeatable=False,
            )
            return made

        patched.execute_command, patched.pipeline = execute_command, make_pipeline

    def _call(self, what: str, do: Callable[[], Any], *, repeatable: bool) -> Any:
        pause(what)
        if current() is None:
            return do()
        if self.world.happens("redis_refuses"):
            self.world.note("   redis fails: not done")
            raise redis.ConnectionError
        if repeatable and self.world.happens("redis_repeats"):
            self.world.note("   redis: done twice")
            do()
        answer = do()
        if self.world.happens("redis_forgets_to_answer"):
            self.world.note("   redis fails: done, but not answered")
            raise redis.ConnectionError
        return _in_order(answer)

    def _describe(self, arguments: tuple[Any, ...]) -> str:
        if arguments[0] == "EVALSHA":
            return f"{self._script_names.get(arguments[1], 'script')} {arguments[3]}"
        return " ".join(str(argument)[:60] for argument in arguments[:2])


def _lock_of(arguments: tuple[Any, ...]) -> tuple[str, float] | None:
    """Name and seconds of the lock that a command takes or keeps, if it does."""
    match arguments:
        case ("SET", str(key), _, "PX", milliseconds, "NX") | ("SET", str(key), _, "NX", "PX", milliseconds):
            return key, milliseconds / 1000
        case ("EVALSHA", _, 1, str(key), _, milliseconds) if key.startswith("sr:lock:"):
            return key, int(milliseconds) / 1000
    return None


def _in_order(answer: Any) -> Any:
    """Redis tells the fields of a hash, and keys of a scan, in an order that differs from run to run."""
    if isinstance(answer, dict):
        return dict(sorted(answer.items()))
    if isinstance(answer, list):
        return [_in_order(part) if isinstance(part, dict) else part for part in answer]
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], list):
        return (answer[0], sorted(answer[1]))
    return answer
