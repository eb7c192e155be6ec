"""One history, told by its seed: a while of everything at once, under faults; then rest; then the
reckoning."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from services.shared.bucket.facts import read_speaker, speaker_ids
from services.shared.bucket.keys import SpeakerId
from services.shared.index import redis_access
from speaker_registry.errors import SpeakerRegistryError, Unavailable
from tests.simulation import actors, reading, rest
from tests.simulation.actors import Request
from tests.simulation.ledger import Violation
from tests.simulation.litter import litter
from tests.simulation.memory import ProcessMemory
from tests.simulation.process import PROFILES, Parts, Process
from tests.simulation.queue import LEASE_SECONDS, ModelledJob
from tests.simulation.reading import Memory
from tests.simulation.scheduler import Actor
from tests.simulation.server import Server
from tests.simulation.weather import CALM
from tests.simulation.world import World

STEPS = 900
CROWD = 10
"""Actors on their way at the same time, at most."""
APIS, WORKERS = ("api-1", "api-2"), ("worker-1", "worker-2")


class Broken(AssertionError):
    """A violation, with what replays it and what led to it."""

    def __init__(self, history: str, violation: BaseException, world: World, shown: int = 40) -> None:
        """`history`: which one it was, in words."""
        last = "\n".join(
            f"{time - 1.8e9:10.2f}  {who:22}  {what}" for time, who, what in world.events[-shown:]
        )
        super().__init__(f"{history}: {violation}\nthe last of {len(world.events)} events:\n{last}")
        self.violation = violation


@dataclass
class History:
    """The events in one world."""

    world: World
    memory: Memory = field(default_factory=Memory)
    contents: int = 0
    encoder: int = 0
    """The number of the encoder that workers start with."""
    requests: list[Request] = field(default_factory=list)
    memories: dict[Process, ProcessMemory] = field(default_factory=dict)
    """What each API process that ever lived keeps, or kept, in memory."""

    def __post_init__(self) -> None:
        world, random = self.world, self.world.random
        world.store.on_delete = self._saw_delete
        self.names = actors.NAMES[: random.randint(1, 3)]
        self.errands = self._draw_errands()
        self._start_all_at_once()
        self._run_alone("api-1", world.processes["api-1"].housekeeper.rebuild)
        self._renew_workers()
        world.draw_weather()
        if world.parts.remembers:
            self.errands += [(self._listen, 0.6), (self._recall, 0.15)]
            self.errands += [(self._upload, 0.05), (self._delete, 0.04), (self._move_alias, 0.04)]

    def _start_all_at_once(self) -> None:
        """The first start of all processes, on an empty bucket and in bad weather."""
        self.world.draw_weather()
        for name in (*APIS, *WORKERS):
            self._start_process(name)
        while self.world.actors or self.world.expects:
            self._advance()
            self._step_one()
        self.world.weather = CALM

    def _draw_errands(self) -> list[tuple[Callable[[], None], float]]:
        """Return what may begin at each step, and how likely it is."""
        likely = self.world.random.uniform
        return [
            (self._upload, likely(0.02, 0.08)),
            (self._upload_embedding, likely(0, 0.01)),
            (self._delete, likely(0, 0.03)),
            (self._move_alias, likely(0, 0.02)),
            (self._precompute, likely(0, 0.02)),
            (self._extract, likely(0, 0.02)),
            (self._cancel, likely(0, 0.02)),
            (self._bring_artifact, likely(0, 0.02)),
            (self._read, 0.08),
            (self._work, 0.15),
            (self._keep_house, 0.06),
            (self._collect_garbage, likely(0, 0.02)),
            (self._announce, likely(0, 0.002)),
            (self._reap, 0.05),
            (self.world.keep_copy, 0.01),
        ]

    # -- the course of things

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self._advance()
            self._strike()
            for errand, odds in self.errands:
                if self.world.random.random() < odds and len(self.world.actors) < CROWD and self._up(APIS):
                    errand()
            self._step_one()

    def _advance(self) -> None:
        random = self.world.random
        lengths, odds = [(0, 0.2), (0.3, 3), (5, 30), (100, 700)], [80, 15, 4.5, 0.5]
        if self.world.parts.remembers:  # what leases are about happens within a second
            lengths, odds = [(0, 0.01), (0.05, 0.5), (1, 30)], [95, 4, 1]
        low, high = random.choices(lengths, odds)[0]
        self.world.advance(random.uniform(low, high))

    def _strike(self) -> None:
        """Faults that are nobody's call."""
        world = self.world
        if world.happens("redis_is_replaced"):
            world.replace_server(roll_back=world.random.random() < 0.5)
            self._slow_down_uploads()
        if world.takes_writes and world.happens("redis_takes_no_writes"):
            world.refuse_writes()
        if world.happens("somebody_litters"):
            world.litter.add(litter(world.random, world.truth))
        if world.happens("object_is_cursed"):
            self._curse()
        if world.happens("bytes_are_lost"):
            self._lose_bytes()
        if world.happens("process_dies"):
            self._restart(world.random.choice([*APIS, *WORKERS]))
        if world.actors and world.happens("actor_hangs"):
            seconds = world.random.choice([40, 400, 2500]) * world.random.random()
            # Half the time one of housekeeping's: what these do after a long silence hurts most.
            ours = [actor for actor in world.actors if actor.name.startswith(("house", "gc"))]
            among = ours if ours and world.random.random() < 0.5 else world.actors
            world.random.choice(among).asleep_until = world.time + seconds

    def _slow_down_uploads(self) -> None:
        """Half of the uploads on their way go on only after others of the same voice have come and gone."""
        for actor in self.world.actors:
            if actor.name.startswith("upload") and self.world.random.random() < 0.5:
                actor.asleep_until = self.world.time + self.world.random.uniform(5, 400)

    def _curse(self) -> None:
        """Nobody can read one of the objects any more. Deleting it is possible."""
        world = self.world
        if ours := self._objects():
            key = world.random.choice(ours)
            world.note(f"   cursed: {key}")
            world.cursed.add(key)
            world.were_cursed.add(key)

    def _lose_bytes(self) -> None:
        """A clip, as uploaded or decoded, or an artifact's file is damaged or gone."""
        world = self.world
        if data := [key for key in self._objects() if "/blob/" in key or key.endswith(".safetensors")]:
            key = world.random.choice(data)
            world.note(f"   lost: {key}")
            world.lost.add(key)
            if world.random.random() < 0.5:
                world.truth.damage(key)
            else:
                world.truth.delete([key])

    def _objects(self) -> list[str]:
        """Keys of all that lies in the bucket of speakers and is ours."""
        world = self.world
        return [one.key for one in world.truth.list("default/v/").objects if one.key not in world.litter]

    def _step_one(self) -> None:
        awake = [actor for actor in self.world.actors if actor.asleep_until <= self.world.time]
        if self.world.random.random() < 0.5:  # else a rebuild would take most of the history
            awake = [actor for actor in awake if actor.name.startswith("house")] or awake
        if awake:
            self.world.step(self.world.random.choice(awake))
            self._bury()

    def _bury(self) -> None:
        """See to those that came to their end."""
        ended = [actor for actor in self.world.actors if actor.done]
        self.world.actors = [actor for actor in self.world.actors if not actor.done]
        for actor in ended:
            self._close(actor)

    def _close(self, actor: Actor) -> None:
        world, error = self.world, actor.error
        if error is not None and not isinstance(error, SpeakerRegistryError):
            raise (
                error if isinstance(error, Violation) else Violation(f"{actor.name} raised {error!r}")
            ) from error
        outcome = "killed" if actor.killed else "done" if error is None else "failed"
        if error is not None and not isinstance(error, Unavailable):
            outcome = "refused"
        world.note(f"{actor.name}: {outcome} {type(error).__name__ if error else ''}")
        world.counts[f"{actor.name.split()[0]} {outcome}"] += 1
        if actor.request is not None:
            actor.request.ended, actor.request.ended_at = world.moment, world.time
            actor.request.outcome = outcome
        actor.then(outcome)

    # -- errands of clients

    def _start(self, kind: str, owner: str, work: Callable[[Process], Any], what: str = "") -> Actor:
        process = self.world.processes[owner]
        return self.world.spawn(f"{kind} {what} @{owner}", process, lambda: work(process))

    def _ask(self, kind: str, name: str, work: Callable[[Process], Any], content: int = 0) -> Actor:
        """A client's request to either API process."""
        actor = self._start(kind, self.world.random.choice(self._up(APIS)), work, name)
        world = self.world
        actor.request = world.ledger.begin(kind, actors.speaker_of(name), world.moment, world.time, content)
        return actor

    def _up(self, names: Sequence[str]) -> list[str]:
        """Those processes that have started."""
        return [name for name in names if self.world.processes[name].up]

    def _name(self) -> str:
        return self.world.random.choice(self.names)

    def _upload(self) -> None:
        random = self.world.random
        if self.requests and random.random() < 0.1:
            self._send(random.choice(self.requests), tries=1)
            return
        self.contents += 1
        key = f"key-{self.contents}" if random.random() < 0.7 else None
        self._send(Request(self._name(), self.contents, key, spoken=random.random() < 0.7), tries=3)

    def _upload_embedding(self) -> None:
        self.contents += 1
        self._send(Request(self._name(), self.contents, None, spoken=False, given=True), tries=1)

    def _send(self, request: Request, tries: int) -> None:
        if not self._up(APIS):
            self.world.later(5, f"repeated: {request}", lambda: self._send(request, tries))
            return
        self.requests.append(request)
        actor = self._ask(
            "upload", request.name, lambda process: actors.upload(process, request), request.content
        )

        def then(outcome: str) -> None:
            if outcome == "done":
                self.world.ledger.acknowledge(
                    request.key, actor.result.version, actor.request, self.world.moment
                )
                self._follow(actor.result.jobs.values(), actor.owner if actor.result.created else None)
            elif outcome in {"failed", "killed"} and tries > 1:
                self.world.later(
                    self.world.within(1, 40), f"repeated: {request}", lambda: self._send(request, tries - 1)
                )

        actor.then = then

    def _delete(self) -> None:
        name = self._name()
        self._ask("delete", name, lambda process: actors.delete(process, name))

    def _move_alias(self) -> None:
        name, alias = self._name(), self.world.random.choice(["default", "prod"])
        self._ask("alias", name, lambda process: actors.move_by_hand(self.world, process, name, alias))

    def _precompute(self) -> None:
        name = self._name()
        self._ask("precompute", name, lambda process: actors.precompute(self.world, process, name))

    def _extract(self) -> None:
        name = self._name()
        actor = self._ask("extract", name, lambda process: actors.extract_some(self.world, process, name))

        def then(outcome: str) -> None:
            if outcome == "done":
                self._follow(actor.result, actor.owner)

        actor.then = then

    def _follow(self, job_ids: Iterable[str], owner: Process | None) -> None:
        """Somebody may wait for jobs, at the process that claimed or joined them or at any other that was
        there when they were claimed."""
        if self.world.random.random() > 0.3:
            return
        for job_id in job_ids:
            there = [*self.world.told.get(job_id, []), *([owner] if owner else [])]
            still = sorted({one.name for one in there if self.world.processes[one.name] is one} & {*APIS})
            if still and len(self.world.actors) < CROWD:
                self._start_follower(job_id, self.world.random.choice(still))

    def _start_follower(self, job_id: str, owner: str) -> None:
        self._start("follow", owner, lambda process: actors.follow(self.world, process, job_id), job_id[-6:])

    def _cancel(self) -> None:
        waiting = [job for job in self.world.queue.jobs.values() if job.state in {"queued", "started"}]
        if waiting:
            job, owner = self.world.random.choice(waiting), self.world.random.choice(self._up(APIS))
            self._start(
                "cancel", owner, lambda process: actors.cancel_job(self.world, process, job.id), job.id[-6:]
            )

    def _bring_artifact(self) -> None:
        name = self._name()
        self._ask("bring", name, lambda process: actors.bring_artifact(self.world, process, name))

    def _read(self) -> None:
        name = self._name()
        speaker_id = actors.speaker_of(name)
        self._ask("read", name, lambda process: reading.read(self.world, self.memory, process, speaker_id))

    def _recall(self) -> None:
        """Somebody asks a process that may answer from memory."""
        name, owner = self._name(), self.world.random.choice(self._up(APIS))
        speaker_id = actors.speaker_of(name)
        self._start(
            "recall",
            owner,
            lambda process: self._memory_of(process).ask(actors.NAMESPACE, name, speaker_id),
            name,
        )

    # -- errands of ours

    def _listen(self) -> None:
        """Each process follows the event stream all the time."""
        for owner in self._up(APIS):
            if not any(actor.name == f"listen  @{owner}" for actor in self.world.actors):
                self._start("listen", owner, lambda process: self._memory_of(process).listen())

    def _memory_of(self, process: Process) -> ProcessMemory:
        if process not in self.memories:
            self.memories[process] = ProcessMemory(self.world, process)
        return self.memories[process]

    def _keep_house(self) -> None:
        owner = self.world.random.choice(self._up(APIS))
        if not any(actor.name == f"house  @{owner}" for actor in self.world.actors):
            self._start("house", owner, lambda process: process.housekeeper.turn())

    def _collect_garbage(self) -> None:
        name = self._name()
        self._start(
            "gc",
            self.world.random.choice(self._up(APIS)),
            lambda process: actors.collect_garbage(process, name),
            name,
        )

    def _announce(self) -> None:
        """A worker is replaced by one with a newer encoder."""
        self.encoder += 1
        self._restart(self.world.random.choice(WORKERS))

    def _restart(self, name: str) -> None:
        """A process is killed, and another takes its place; a worker's with the newest encoder."""
        self.world.kill_process(name)
        self._bury()
        fingerprint = f"sha256:{self.encoder:064x}"
        self._start_process(name, {profile.name: fingerprint for profile in PROFILES})

    def _start_process(self, name: str, fingerprints: Mapping[str, str] | None = None) -> None:
        self.world.make_process(name, fingerprints)
        self._start("start", name, lambda process: actors.start(self.world, process))

    def _renew_workers(self) -> None:
        """Replace the workers, so that one makes what was announced last."""
        self.encoder += 1
        for name in WORKERS:
            self._restart(name)
            self._let_all_finish()

    def _work(self) -> None:
        world = self.world
        workers = [name for name in self._up(WORKERS) if world.processes[name].in_service]
        if workers and (waiting := world.queue.waiting()):
            job = world.random.choice(waiting)
            if world.happens("job_vanishes"):
                del world.queue.jobs[job.id]
                world.note(f"vanished: {job.id}")
                return
            self._take(job, world.random.choice(workers))
            if world.happens("job_doubles"):
                self._take(job, world.random.choice(workers), own=False)

    def _take(self, job: ModelledJob, owner: str, *, own: bool = True) -> None:
        me: list[Actor] = []
        actor = self._start(
            "work",
            owner,
            lambda process: actors.work_on(self.world, process, job, lambda: me[0]),
            job.id[-6:],
        )
        me.append(actor)
        if own:
            self.world.queue.start(job, actor, self.world.time)

    def _reap(self) -> None:
        """The queue takes jobs back whose holder is dead, or was silent for too long."""
        now = self.world.time
        for job in self.world.queue.jobs.values():
            holder = job.holder
            if (
                job.state != "started"
                or not isinstance(holder, Actor)
                or now - job.held_since <= LEASE_SECONDS
            ):
                continue
            if holder.done or holder.asleep_until > now:
                self.world.note(f"reaped: {job.id}")
                self.world.queue.reap(job, now)

    def _saw_delete(self, key: str) -> None:
        """Nothing that a live version names may ever be deleted, nor the last epoch; what is not ours only
        after a delete.
        """
        if key.startswith("_epochs/"):
            if key >= max(stored.key for stored in self.world.truth.list("_epochs/").objects):
                raise Violation(f"deleted, though it is the last epoch: {key}")
            return
        if not key.startswith("default/v/"):
            raise Violation(f"deleted, though it is of no speaker: {key}")
        speaker_id = SpeakerId("default", key.split("/")[2])
        truth = read_speaker(self.world.truth, speaker_id)
        for version in truth.versions:
            if key in rest.needed(speaker_id, version):
                raise Violation(f"deleted, though {version.vuid} lives: {key}")
        if key in self.world.litter and not truth.tombstone:
            raise Violation(f"deleted, though it is none of ours: {key}")

    # -- rest

    def come_to_rest(self) -> None:
        world = self.world
        world.weather = CALM
        self._let_all_finish()
        self._renew_workers()
        self._let_housekeeping_run(turns=14)
        rest.check_promises_kept(world, world.processes["api-1"])
        world.cursed.clear()
        self._let_a_sweep_run()
        self._run_alone("api-1", self._read_everything)  # who asks for what is lost has it made again
        for _ in range(2):
            self._let_a_sweep_run()
        rest.check_everything(world, world.processes["api-1"])

    def _let_all_finish(self) -> None:
        while self.world.actors or self.world.expects:
            self.world.advance(5)
            self._reap()
            self._step_one()

    def _let_a_sweep_run(self) -> None:
        self.world.advance(50_000)
        self._let_housekeeping_run(turns=6)

    def _let_housekeeping_run(self, turns: int) -> None:
        """Let housekeeping run for about this many times 15 seconds, with workers at work."""
        for turn in range(turns):
            self.world.advance(16)
            self._start("house", APIS[turn % 2], lambda process: process.housekeeper.turn())
            while self.world.actors or self.world.queue.waiting():
                self.world.advance(0.1)
                self._reap()
                self._work()
                self._step_one()

    def _read_everything(self) -> None:
        process = self.world.processes["api-1"]
        for speaker_id in speaker_ids(self.world.truth):
            reading.read(self.world, self.memory, process, speaker_id)

    def _run_alone(self, owner: str, work: Callable[[], Any]) -> None:
        self._start("start", owner, lambda _: work())
        while self.world.actors:
            self.world.advance(0.1)
            self._step_one()


_PATIENCE_SECONDS = 60.0
"""The patience with Redis. The weather determines when Redis is silent, not the machine that runs the
simulation.
"""


def run(
    seed: int,
    server: Server,
    parts: Parts | None = None,
    odds: Mapping[str, float] | None = None,
    steps: int = STEPS,
) -> Counter[str]:
    """Raises `Broken` if a promise was; else tells how often what happened.

    Args:
        odds: of faults that are as likely in every history, instead of drawn.
    """
    world = World(seed, server, parts or Parts(), odds or {})
    with told_if_broken(f"seed {seed}", world):
        history = History(world)
        history.live(steps)
        history.come_to_rest()
    world.counts["events"] = len(world.events)
    return world.counts


@contextmanager
def told_if_broken(history: str, world: World) -> Iterator[None]:
    """Raises `Broken` for a violation inside. At the end, nothing of the world is left running."""
    try:
        with patch.object(redis_access, "SUSPECT_SECONDS", _PATIENCE_SECONDS):
            yield
    except Violation as violation:
        raise Broken(history, violation, world) from violation
    finally:
        for actor in world.actors:
            actor.kill()
        for process in world.processes.values():
            process.stop()
