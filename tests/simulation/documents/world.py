"""One simulated world: time, chance, bucket, Redis, queue, and the processes that live in it.

Everything that happens is decided by the seed. The world knows what can go wrong, not what has to come of it.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import Any

from services.shared.bucket.layout import VIEW, bytes_of, document_key
from services.shared.model.speaker import SpeakerId
from speaker_registry.errors import SpeakerRegistryError
from tests.memory_registry import NS, PROFILES, Fingerprints, id_of
from tests.simulation import scheduler
from tests.simulation.documents.ledger import Ledger, Violation, named
from tests.simulation.documents.process import WAITS, Process
from tests.simulation.documents.queue import LeasedQueue
from tests.simulation.documents.request import Request
from tests.simulation.documents.servers import WatchedServer
from tests.simulation.documents.store import DAY, HOUR, MINUTE, Truth, WeatheredStore
from tests.simulation.documents.weather import CALM, THEMES
from tests.simulation.scheduler import Actor

NAMES = ("wren", "lark", "rook")
_LOOK_SECONDS = 1.0
_LOOK_STEPS = 60
_MOST_SERVERS = 4
_KEPT_SNAPSHOTS = 4
START = 1_800_000_000.0
SKEWS = (0.0, -2.0, 2.0, -HOUR, HOUR, -90_000.0, 400_000.0)
"""Clocks are wrong by so many seconds."""


class World:
    """The state of one simulated world."""

    def __init__(self, seed: int, theme: str | None = None) -> None:
        self.random = Random(seed)
        self.theme = THEMES[theme or self.random.choice(list(THEMES))]
        self.time = START
        self.weather = CALM
        self.events: list[tuple[float, str, str]] = []
        self.counts: Counter[str] = Counter()
        self.names = NAMES[: self.random.choice([1, 1, 3])]
        self.truth = Truth(lambda: self.time)
        self.store = WeatheredStore(self, self.truth)
        self.ledger = Ledger(self)
        self.queue = LeasedQueue()
        self.fingerprints = Fingerprints()
        self.trouble_until = float("-inf")
        """The time until which Redis was rolled back under processes that had not looked yet."""
        self.litter: set[str] = set()
        self.actors: list[Actor] = []
        self._coming: list[tuple[float, int, str, Callable[[], None]]] = []
        self._snapshots: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
        self.servers = [WatchedServer("run 1", lambda: self.time, self.ledger)]
        self.processes = [Process(self, f"p{number}") for number in range(self.random.randint(2, 4))]

    # Time and chance

    @property
    def is_calm(self) -> bool:
        return self.weather is CALM

    def happens(self, fault: str) -> bool:
        odds = getattr(self.weather, fault)
        if not odds or self.random.random() >= odds:
            return False
        self.counts[fault] += 1
        self.note(f"   {fault}")
        return True

    def note(self, text: str) -> None:
        actor = scheduler.current()
        self.events.append((self.time, actor.name if actor else "", text))

    def later(self, seconds: float, what: str, do: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (self.time + seconds, len(self.events), what, do))
        self.note(f"   in {seconds:.1f} s: {what}")

    @property
    def next_coming(self) -> float | None:
        """Return when something will happen by itself, or None."""
        return self._coming[0][0] if self._coming else None

    def advance(self, seconds: float) -> None:
        """Let time pass. What is due happens, and every process that runs has looked at its view."""
        until = self.time + seconds
        while self._coming and self._coming[0][0] <= until:
            self.time, _, what, do = heapq.heappop(self._coming)
            self.note(what)
            do()
        self.time = until
        for process in self.processes:
            if self.time - process.looked_at >= _LOOK_SECONDS:
                self.look(process)

    # Actors

    def spawn(self, kind: str, process: Process, name: str, work: Callable[[Request], Any]) -> Actor:
        request = Request(kind, name, process, self.time, len(self.events))

        def begin() -> Any:
            request.started = self.time
            return work(request)

        actor = Actor(f"{kind} {name} @{process.name}", begin, process)
        actor.request = request
        actor.asleep_until = max(self.time, process.stands_until)
        self.actors.append(actor)
        return actor

    def awake(self) -> list[Actor]:
        """Return the actors that can go on now."""
        return [
            actor
            for actor in self.actors
            if actor.asleep_until <= self.time and not (actor.calling == WAITS and actor.owner.turn.is_held)
        ]

    def step(self, actor: Actor) -> None:
        """Let an actor make its next call."""
        if actor.calling:
            self.events.append((self.time, actor.name, actor.calling))
        actor.request.was_lied_to |= actor.owner.look_was_wrong
        actor.step()
        if actor.done:
            self.actors.remove(actor)
            self._close(actor)

    def _close(self, actor: Actor) -> None:
        actor.request.answered = self.time
        outcome = f"failed: {actor.error!r}" if actor.error else "killed" if actor.killed else "done"
        self.events.append((self.time, actor.name, outcome))
        if actor.error is not None and not isinstance(actor.error, SpeakerRegistryError):
            found = actor.error
            raise found if isinstance(found, Violation) else Violation(f"{actor.name}: {found!r}") from found
        self.counts[f"{actor.request.kind} {outcome.partition(':')[0]}"] += 1
        actor.then(outcome)

    def sleep(self, seconds: float) -> None:
        """Let the actor that is running sleep."""
        actor = scheduler.current()
        assert actor
        actor.asleep_until = self.time + seconds
        scheduler.pause(f"slept {seconds:.2f} s")

    def look(self, process: Process) -> None:
        """Let a process look at its view, as its thread does every second."""
        if process.stands_until > self.time or any(
            actor.owner is process and actor.request.kind == "look" for actor in self.actors
        ):
            return
        process.looked_at = self.time
        actor = self.spawn("look", process, "", lambda _: process.registry.generation.check())
        for _ in range(_LOOK_STEPS):
            if actor.done or actor.asleep_until > self.time or actor.calling == WAITS:
                return  # what is left of it goes on among the others
            self.step(actor)

    # Faults that are nobody's call

    def strike(self) -> None:
        random = self.random
        if random.random() < 0.02:
            self._keep_copy()
        if self.happens("redis_changes"):
            self._change_redis()
        if self.happens("process_dies"):
            self._kill(random.choice(self.processes))
        if self.actors and self.happens("actor_stops"):
            longest = random.choice([1.0, 20.0, MINUTE, 20 * MINUTE, 3 * HOUR, 2 * DAY, 5 * DAY, 40 * DAY])
            random.choice(self.actors).asleep_until = self.time + longest * random.uniform(0.3, 1.3)
        if self.happens("machine_stops"):
            longest = random.choice([10.0, 20 * MINUTE, 3 * HOUR, 2 * DAY])
            self._stop_machine(random.choice(self.processes), longest * random.uniform(0.3, 1.3))
        if self.happens("artifact_is_lost"):
            self._lose_artifact()
        if self.happens("document_is_damaged"):
            self._damage_document()
        if self.happens("somebody_litters"):
            self._litter()
        if self.happens("document_is_newer"):
            self._write_as_newer_release()
        if self.happens("view_is_damaged"):
            self._damage_view()
        if self.happens("encoder_changes"):
            self._change_encoder()
        if self.happens("clock_is_set"):
            clocks: list[Process | WatchedServer] = [*self.processes, *self.servers]
            random.choice(clocks).skew = random.choice(SKEWS)

    def _kill(self, process: Process) -> None:
        """End a process as `kill -9` does, and start it again."""
        self.note(f"killed: {process.name}")
        for actor in [actor for actor in self.actors if actor.owner is process]:
            actor.kill()
            self.actors.remove(actor)
            self._close(actor)
        process.start()

    def _stop_machine(self, process: Process, seconds: float) -> None:
        self.note(f"{process.name} stands still for {seconds:.0f} s")
        if self.random.random() < 0.5:
            process.stood_still += seconds
        else:
            process.suspended += seconds
        process.stands_until = max(process.stands_until, self.time) + seconds
        process.look_was_wrong = True  # it believes that its last look is young
        for actor in self.actors:
            if actor.owner is process:
                actor.request.stood_still = True
                actor.asleep_until = max(actor.asleep_until, process.stands_until)

    def _lose_artifact(self) -> None:
        name = self.random.choice(self.names)
        ours = sorted(key for key in named(id_of(name), self.ledger) if key.endswith(".safetensors"))
        if not ours:
            return
        key = self.random.choice(ours)
        self.note(f"   lost: {key}")
        self.ledger.lost.add(key)
        if key in self.truth.objects and self.random.random() < 0.5:
            self.truth.put(key, b"damaged")
        else:
            self.truth.delete([key])

    def _damage_document(self) -> None:
        """Put something foreign in the place of a document, also where there was none."""
        speaker_id = id_of(self.random.choice(self.names))
        key = document_key(speaker_id)
        self.note(f"   damaged: {key}")
        self.truth.put(key, b"damaged %d" % self.random.getrandbits(30))
        self.ledger.damage(speaker_id)

    def _write_as_newer_release(self) -> None:
        speaker_id = id_of(self.random.choice(self.names))
        if speaker_id in self.ledger.damaged or document_key(speaker_id) not in self.truth.objects:
            return
        self.rewrite(speaker_id, needs=("a new word",))
        seconds = self.random.choice([MINUTE, HOUR, DAY]) * self.random.random()
        take_back = partial(self.rewrite, speaker_id, needs=())
        self.later(seconds, f"{speaker_id} is written without the new word", take_back)

    def rewrite(self, speaker_id: SpeakerId, *, needs: tuple[str, ...]) -> None:
        """Change a document as another release does, which knows other words."""
        newest = self.ledger.newest[speaker_id]
        if speaker_id in self.ledger.damaged or newest.needs == needs:
            return
        changed = newest.having(needs=needs).following(
            newest, f"by the other release {newest.revision}", at=int(self.time), by="other", did="rewrite"
        )
        key = document_key(speaker_id)
        self.truth.carry_out("put", key, changed.to_bytes(), None)
        self.ledger.happened(key)

    def _damage_view(self) -> None:
        if VIEW in self.truth.objects:
            self.truth.put(VIEW, b"damaged %d" % self.random.getrandbits(30))
            self.ledger.happened(VIEW)

    def _litter(self) -> None:
        slug = self.random.choice(self.names)
        strange = [
            f"{NS}/s/{slug}.json.bak",
            f"{NS}/s/{slug}/notes",
            f"{NS}/s/README",
            f"{NS}/d/{slug}/notes",
            f"{NS}/d/{slug}/{'a' * 31}/clip",
            "readme/README",
        ]
        key = self.random.choice(strange)
        self.litter.add(key)
        self.truth.put(key, b"not ours")

    def _change_encoder(self) -> None:
        profile = self.random.choice(PROFILES).name
        before = self.fingerprints.current[profile]
        self.fingerprints.change(profile, f"f{int(before[1:]) + 1}")
        self.note(f"   {profile} is made with {self.fingerprints.current[profile]}")

    def kept_fingerprints(self) -> dict[str, Collection[str]]:
        """Return for each profile the fingerprints whose artifacts stay."""
        read = self.fingerprints.read
        return {name: {*read(name).kept_fingerprints, "given"} for name in self.fingerprints.current}

    # Redis

    def _keep_copy(self) -> None:
        copy = (len(self.servers) - 1, self.servers[-1].snapshot(), self.queue.snapshot())
        self._snapshots = [*self._snapshots, copy][-_KEPT_SNAPSHOTS:]

    def _change_redis(self) -> None:
        changes: dict[str, Callable[[], None]] = {
            "emptied": self._empty_redis,
            "rolled back": self._roll_back_redis,
            "restarted": self._restart_redis,
            "doubled": self._double_redis,
            "exchanged": self._go_back,
            "cut off": self._cut_redis_off,
        }
        change = self.random.choice(self.theme.redis or (*changes, "doubled"))
        self.note(f"   REDIS is {change}")
        changes[change]()

    def _name_server(self) -> str:
        return f"run {self.random.getrandbits(40)}"

    def _empty_redis(self) -> None:
        """Somebody runs FLUSHALL, or the server restarts on nothing."""
        server = self.servers[-1]
        server.data, self.queue.jobs = {}, {}
        if self.random.random() < 0.5:
            server.name = self._name_server()

    def _restart_redis(self) -> None:
        """The server starts again on all that it had, and all connections are new."""
        self.servers[-1].name = self._name_server()

    def _roll_back_redis(self) -> None:
        """An older state is restored, under another run or under the same one."""
        ours = [copy for copy in self._snapshots if copy[0] == len(self.servers) - 1]
        if not ours:
            return
        _, data, jobs = self.random.choice(ours)
        server = self.servers[-1]
        watching = [one for one in self.processes if self._watches(one)]
        server.data = data
        self.queue.jobs = jobs
        self._snapshots = [copy for copy in self._snapshots if copy[1] is not data]
        if not watching or self.random.random() < 0.5:
            server.name = self._name_server()
            return
        self.trouble_until = self.time + _LOOK_SECONDS
        for process in watching:
            self.look(process)

    def _watches(self, process: Process) -> bool:
        """Return whether a process looks at the last server every second, and so sees a rollback at once."""
        return (
            process.server == len(self.servers) - 1
            and bool(process.registry.generation._trusted)
            and process.stands_until <= self.time
            and process.unreachable_until <= self.time
        )

    def _double_redis(self) -> None:
        """A second primary takes over, with or without the data of the first."""
        if len(self.servers) >= _MOST_SERVERS:
            return
        second = WatchedServer(self._name_server(), lambda: self.time, self.ledger)
        if self.random.random() < 0.7:
            second.data = self.servers[-1].snapshot()
        self.servers.append(second)
        self._move(len(self.servers) - 1)

    def _go_back(self) -> None:
        """Processes turn to any of the servers."""
        self._move(self.random.randrange(len(self.servers)))

    def _move(self, server: int) -> None:
        for process in self.processes:
            longest = self.random.choice([0.0, 1.0, 30.0, 60.0, 20 * MINUTE])
            self.later(
                longest * self.random.random(),
                f"{process.name} moves to server {server}",
                partial(self._move_one, process, server),
            )

    def _move_one(self, process: Process, server: int) -> None:
        if not self.is_calm:
            process.server = server

    def _cut_redis_off(self) -> None:
        for process in self.processes:
            if self.random.random() < 0.5:
                longest = self.random.choice([1.0, MINUTE, HOUR])
                process.unreachable_until = self.time + longest * self.random.random()

    # Looking

    def stored(self, speaker_id: SpeakerId) -> set[str]:
        """Return the keys of all bytes of a speaker that a document could name."""
        found = ((key, bytes_of(key)) for key in self.truth.objects)
        return {key for key, one in found if one and one.speaker_id == speaker_id}
