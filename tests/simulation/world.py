"""One simulated world: time, chance, bucket, Redis, queue, and the processes that live in it.

Everything that happens is decided by the seed. Knows what can go wrong, not what is supposed to come of it.
"""

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from services.shared.bucket.keys import SpeakerId, VersionKey, parse_key
from services.shared.configuration.settings import HousekeepingSettings, RegistrySettings
from services.shared.index.speaker_index import EVENTS
from services.shared.model.domain import TombstoneFact, VoidFact
from tests.simulation import scheduler
from tests.simulation.ledger import ClientRequest, Ledger, Violation
from tests.simulation.process import PROFILES, Parts, Process
from tests.simulation.queue import ModelledJob, ModelledQueue
from tests.simulation.scheduler import Actor
from tests.simulation.server import Server, disconnect
from tests.simulation.store import LATE, ModelledStore, PerfectStore
from tests.simulation.weather import CALM, Weather

FINISHED = {b"succeeded", b"failed", b"canceled", b"superseded"}


class World:
    """`odds`: of the faults whose odds are not drawn. `weather`: how bad it is now. `events`: all that
    happened, as (time, who, what).
    """

    def __init__(self, seed: int, server: Server, parts: Parts, odds: Mapping[str, float]) -> None:
        self.random = Random(seed)
        self.parts = parts
        self.time = 1_800_000_000.0
        self.weather = CALM
        self._odds = odds
        self.events: list[tuple[float, str, str]] = []
        self.counts: Counter[str] = Counter()
        self.ledger = Ledger()
        self.server = server
        self.store_clock_behind = self.random.uniform(0, 1)
        self.truth = PerfectStore(lambda: self.time)
        self.store = ModelledStore(self, self.truth)
        self.store.on_put = self._saw_put
        self.cursed: set[str] = set()
        self.were_cursed: set[str] = set()
        """Keys of objects that cannot be read now, or could not be at some time."""
        self.lost: set[str] = set()
        """Keys of clips and artifacts whose bytes are missing or damaged."""
        self.litter: set[str] = set()
        """Keys of objects that are none of ours."""
        self.queue = ModelledQueue()
        self.creates_only = self.random.random() < 0.5
        self.takes_writes = True
        """Redis does."""
        self._identity = ""
        self.actors: list[Actor] = []
        self.processes: dict[str, Process] = {}
        self._coming: list[tuple[float, int, str, Callable[[], None]]] = []
        self._kept_queue: dict[str, ModelledJob] = {}
        self._tombstones: dict[str, ClientRequest] = {}
        """Maps a call of the store to the delete that makes it."""
        self._claims: dict[tuple[str, str, str], tuple[int, str]] = {}
        self.told: dict[str, list[Process]] = {}
        """Id of a job -> processes that were there when it was claimed."""
        self._last_told = "0-0"
        self._run = 0
        self._locks: dict[str, float] = {}
        profiles = [profile.name for profile in PROFILES]
        self.settings = RegistrySettings(
            profiles=tuple(profiles[: self.random.randint(1, 2)]),
            registration_policy=self.random.choice(["overwrite"] * 5 + ["immutable"]),
        ).model_copy(update=dict(parts.settings))
        given: dict[str, Any] = {
            "sweep_seconds": 40_000,
            # In one thread: the world decides what happens at the same time.
            "rebuild_threads": 1,
            "sweep_threads": 1,
            "grace_seconds": 3600,
            "deleted_grace_seconds": self.random.choice([0, 0, 600]),
        }
        self.housekeeping = HousekeepingSettings.model_construct(
            **{**HousekeepingSettings(**given).model_dump(), **parts.housekeeping}
        )

    # -- time and chance

    def draw_weather(self) -> None:
        self.weather = Weather.draw(self.random, self._odds)

    def happens(self, fault: str) -> bool:
        odds = getattr(self.weather, fault)
        if not odds or self.random.random() >= odds:
            return False
        self.counts[fault] += 1
        return True

    def within(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def random_bits(self, count: int) -> int:
        return self.random.getrandbits(count)

    def later(self, seconds: float, what: str, do: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (self.time + seconds, len(self.events), what, do))
        self.note(f"   in {seconds:.1f} s: {what}")

    def advance(self, seconds: float) -> None:
        until = self.time + seconds
        while self._coming and self._coming[0][0] <= until:
            self.time, _, what, do = heapq.heappop(self._coming)
            self.note(what)
            do()
            if attempt := self._tombstones.get(what.removeprefix(LATE)):
                attempt.landed = self.moment
        self.time = until

    @property
    def expects(self) -> bool:
        """Something is still going to happen by itself."""
        return bool(self._coming)

    def note(self, text: str) -> None:
        actor = scheduler.current()
        self.events.append((self.time, actor.name if actor else "", text))

    @property
    def moment(self) -> int:
        return len(self.events)

    # -- processes and what they do

    def make_process(self, kind: str, fingerprints: Mapping[str, str] | None = None) -> Process:
        """Make a process in the place of an earlier one of that name, if there is one. It is not
        started yet.
        """
        process = Process(
            self,
            kind,
            self.parts,
            self.settings,
            self.housekeeping,
            skew=self.random.choice([0.0, 0.0, -2.0, 2.0]),
            fingerprints=fingerprints or {},
        )
        self.processes[kind] = process
        return process

    def kill_process(self, name: str) -> None:
        """kill -9."""
        old = self.processes[name]
        self.note(f"killed: {name}")
        for actor in self.actors:
            if actor.owner is old:
                actor.kill()
        old.stop()

    def spawn(self, name: str, process: Process, work: Callable[[], Any]) -> Actor:
        actor = Actor(name, work, process)
        self.actors.append(actor)
        return actor

    def step(self, actor: Actor) -> None:
        """Let an actor make its next call. What it was about to do is in the events."""
        if actor.calling:
            self.events.append((self.time, actor.name, actor.calling))
        actor.step()

    def sleep(self, seconds: float) -> None:
        """Let an actor sleep."""
        actor = scheduler.current()
        assert actor
        actor.asleep_until = self.time + seconds
        scheduler.pause(f"slept {seconds:.1f} s")

    # -- Redis

    def keep_copy(self) -> None:
        self.note("snapshot of redis")
        self.server.remember()
        self._kept_queue = self.queue.snapshot()

    def replace_server(self, *, roll_back: bool) -> None:
        self._run += 1
        self.note("redis rolled back" if roll_back else "redis emptied")
        self.server.replace(roll_back=roll_back)
        self.takes_writes = True
        self._last_told = "0-0"
        self.queue.jobs = ModelledQueue(self._kept_queue).snapshot() if roll_back else {}
        for process in self.processes.values():
            if process.up:
                disconnect(process.index)

    def refuse_writes(self) -> None:
        """Redis takes none for up to a minute. It may be replaced meanwhile."""
        run, as_replica = self._run, self.random.random() < 0.5
        self.note("redis takes no writes")
        self.server.refuse_writes(as_replica=as_replica)
        self.takes_writes = False

        def end() -> None:
            if run == self._run:
                self.server.take_writes()
                self.takes_writes = True

        self.later(self.within(1, 60), "redis takes writes again", end)

    def hold_lock(self, key: str, seconds: float) -> None:
        """A lock's time to live is in the world's time."""
        until = self._locks[key] = self.time + seconds

        def expire() -> None:
            if self._locks[key] != until:
                return
            if self.takes_writes:
                self.server.raw.delete(key)
            else:
                self.later(5, f"expires: {key}", expire)

        self.later(seconds, f"expires unless kept: {key}", expire)

    def tell_news(self) -> None:
        """All processes hear of what happened in the index. In a real one `LongPolls` reads it."""
        for position, event in self._events_after(self._last_told):
            self._last_told = position
            for process in self.processes.values():
                if process.up:
                    process.operations.extractions.seen_jobs.hear(event)

    def tell_old_news(self, process: Process) -> None:
        """A process that starts hears of the last minutes."""
        for _, event in self._events_after("0-0"):
            if event["at"] > self.time - 600:
                process.operations.extractions.seen_jobs.hear(event)

    def _events_after(self, position: str) -> Iterator[tuple[str, dict[str, Any]]]:
        entries: Any = self.server.raw.xrange(EVENTS, min=f"({position}")
        for at, fields in entries:
            yield at.decode(), json.loads(fields[b"d"])

    # -- what may never happen, noticed while it happens

    def _saw_put(self, key: str) -> None:
        match parse_key(key):
            case VersionKey():
                actor = scheduler.current()
                if actor is None or actor.request is None or actor.request.kind != "upload":
                    raise Violation(f"{actor and actor.name} created a version: {key}")
            case TombstoneFact():
                if (actor := scheduler.current()) and actor.request:
                    actor.request.stored = True
                    self._tombstones[f"put {key}"] = actor.request
            case VoidFact():
                self._check_lost(key.rpartition("/")[0])

    def _check_lost(self, folder: str) -> None:
        """Only an artifact whose bytes are lost may be said to be void."""
        if not any(key.startswith(folder) for key in self.lost):
            raise Violation(f"an artifact is said to be void whose bytes are there: {folder}")

    def saw_identity(self, identity: str) -> None:
        """All processes that ever start agree which bucket this is."""
        self.note(f"the bucket is {identity}")
        self._identity = self._identity or identity
        if identity != self._identity:
            raise Violation(f"the bucket was {self._identity} and is {identity}")

    def saw_place_asked_for(self, vuid: str) -> None:
        """A repeated upload may be given the vuid that an earlier attempt asked for."""
        actor = scheduler.current()
        assert actor
        self.ledger.authors[vuid] = actor.request

    def saw_claim(self, speaker_id: SpeakerId, claimed: Mapping[str, Any]) -> None:
        """One computation at a time: an earlier claim of the same must have ended."""
        what = (claimed["vuid"], claimed["profile"], claimed["fingerprint"])
        run, job_id = self._claims.get(what, (self._run, ""))
        self._claims[what] = (self._run, claimed["job"]["id"])
        self.told[claimed["job"]["id"]] = [process for process in self.processes.values() if process.up]
        if run != self._run or job_id in {"", claimed["job"]["id"]}:
            return
        state = self.server.raw.hget(f"sr:job:{job_id}", "state")
        if state is not None and state not in FINISHED:
            raise Violation(f"{what} was claimed again while {job_id} is {state!r}")
