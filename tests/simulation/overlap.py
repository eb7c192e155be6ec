"""Two operations on one voice, the second while the first is stopped half-way, and Redis lost at one of their
steps.

`tests.simulation.history` draws such moments at random. Here each of them can be named, so all of them can be
tried. There are no other faults. Knows no random histories.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from services.shared.configuration.settings import RegistrySettings
from tests.simulation import actors, scheduler
from tests.simulation.actors import Request
from tests.simulation.history import APIS, WORKERS, History, told_if_broken
from tests.simulation.process import Parts, Process
from tests.simulation.scheduler import Actor
from tests.simulation.server import Server
from tests.simulation.world import World

NAME = "alice"
REGISTERED = Request(NAME, 2, "key-2", spoken=True)
"""A voice has two versions before anything overlaps: the first is ready, and this is the second, whose
extraction is still in the queue."""
UPLOADED = Request(NAME, 3, "key-3", spoken=True)
OTHER = Request(NAME, 4, "key-4", spoken=True)

PAIRS = {
    "an upload and another one": ("upload", "upload other"),
    "an upload and the same again": ("upload", "upload"),
    "an upload and a delete": ("upload", "delete"),
    "a delete and an upload": ("delete", "upload"),
    "a delete and a repeated upload": ("delete", "upload again"),
    "a repeated upload and a delete": ("upload again", "delete"),
    "an upload and a promotion": ("upload", "publish"),
    "a promotion and an upload": ("publish", "upload"),
    "a publication and a forced one": ("publish", "publish anew"),
    "a publication and a delete": ("publish", "delete"),
    "a delete and a publication": ("delete", "publish"),
}
"""The operation that is stopped, and the one that runs meanwhile."""


@dataclass(frozen=True)
class Moment:
    """One way in which two operations of `PAIRS` can meet a loss.

    `stop`: the first one makes so many calls before the second begins. `loss`: so many calls of both are made
    before Redis is lost. `rolled_back`: the next Redis holds what was there before both; else it is empty.
    """

    pair: str
    stop: int
    loss: int
    rolled_back: bool

    def __str__(self) -> str:
        how = "rolled back" if self.rolled_back else "emptied"
        return f"{self.pair}, after {self.stop} calls, and Redis {how} after {self.loss}"


def moments(pair: str, new_server: Callable[[], Server]) -> Iterator[Moment]:
    """All of them, those included in which one operation is over before the other or the loss comes.

    `new_server`: makes an empty one.
    """
    first, second = (_calls_of(operation, new_server()) for operation in PAIRS[pair])
    for stop in range(first + 1):
        for loss in range(first + second + 1):
            for rolled_back in (False, True):
                yield Moment(pair, stop, loss, rolled_back)


def live_through(moment: Moment, server: Server, parts: Parts | None = None) -> None:
    """Raises `Broken` if a promise was."""
    world = _world(server, parts or Parts())
    with told_if_broken(str(moment), world):
        overlap = Overlap(world)
        overlap.prepare()
        overlap.meet(moment)
        overlap.come_to_rest()


def _calls_of(operation: str, server: Server) -> int:
    """Return how many calls an operation makes if nothing comes in between."""
    world = _world(server, Parts())
    with told_if_broken(operation, world):
        overlap = Overlap(world)
        overlap.prepare()
        overlap.finish(overlap.begin(operation))
    return overlap.calls


def _world(server: Server, parts: Parts) -> World:
    world = World(0, server, parts, {})
    world.settings = RegistrySettings(profiles=("ecapa",), registration_policy="overwrite")
    world.creates_only = True
    return world


@dataclass
class Overlap(History):
    """One voice, and what happens to it."""

    calls: int = 0
    """Made so far by the operations that meet."""
    loss: Moment | None = None
    """The one that is still to come."""
    operations: dict[str, Callable[[], Actor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world.store.on_delete = self._saw_delete
        self.names = (NAME,)
        self.operations = {
            "upload": lambda: self._begin_upload(UPLOADED),
            "upload other": lambda: self._begin_upload(OTHER),
            "upload again": lambda: self._begin_upload(REGISTERED),
            "delete": lambda: self._latest(self._delete),
            "publish": self._begin_publication,
            "publish anew": self._begin_forced_publication,
        }

    def prepare(self) -> None:
        """Run up to the moment before anything overlaps."""
        for name in (*APIS, *WORKERS):
            fingerprints = {"ecapa": "sha256:1"} if name in WORKERS else {}
            self._start_process(name, fingerprints)
            self._let_all_finish()
        self._run_alone("api-1", self.world.processes["api-1"].housekeeper.rebuild)
        self.finish(self._begin_upload(Request(NAME, 1, "key-1", spoken=True)))
        self.finish(self._begin_publication())
        self.finish(self._begin_upload(REGISTERED))
        self._read_all()
        self.world.keep_copy()
        self.calls = 0

    def meet(self, moment: Moment) -> None:
        """Run both operations, and those that their clients repeat, to their ends."""
        self.loss = moment
        first, second = PAIRS[moment.pair]
        stopped = self.begin(first)
        for _ in range(moment.stop):
            self._call(stopped)
        self.finish(self.begin(second))
        self._read_all()
        self.finish(stopped)
        self._lose_redis()
        self._read_all()

    def begin(self, operation: str) -> Actor:
        return self.operations[operation]()

    def finish(self, actor: Actor) -> None:
        """Let an actor make all its calls, and nobody else theirs."""
        while not actor.done:
            self._call(actor)

    def _call(self, actor: Actor) -> None:
        """Let an actor make its next call, if it has any left."""
        if actor.done:
            return
        if self.loss is not None and self.calls == self.loss.loss:
            self._lose_redis()
        self.world.advance(max(0.1, actor.asleep_until - self.world.time))
        self.world.step(actor)
        self.calls += 1
        self._bury()

    def _lose_redis(self) -> None:
        """Once."""
        if self.loss is not None:
            self.world.replace_server(roll_back=self.loss.rolled_back)
            self.world.counts["redis_is_replaced"] += 1
        self.loss = None

    def _read_all(self) -> None:
        """Check what clients see now."""
        reader = self._latest(self._read)
        while not reader.done:
            self.world.advance(0.1)
            self.world.step(reader)
            self._bury()

    # -- operations

    def _latest(self, errand: Callable[[], None]) -> Actor:
        errand()
        return self.world.actors[-1]

    def _begin_upload(self, request: Request) -> Actor:
        return self._latest(lambda: self._send(request, tries=3))

    def _begin_publication(self) -> Actor:
        """A worker makes the artifact that was waited for first."""
        return self._start("work", WORKERS[0], self._publish)

    def _begin_forced_publication(self) -> Actor:
        """A client wants the newest version's artifact made once more, and a worker does that."""

        def work(process: Process) -> None:
            newest = process.operations.speakers.find(actors.NAMESPACE, NAME).speaker.newest
            process.operations.extractions.ensure(actors.speaker_of(NAME), newest, ["ecapa"], force=True)
            self._publish(process)

        return self._start("work", WORKERS[1], work)

    def _publish(self, process: Process) -> None:
        me, waiting = scheduler.current(), self.world.queue.waiting()
        if waiting:
            self.world.queue.start(waiting[0], me, self.world.time)
            actors.work_on(self.world, process, waiting[0], lambda: me)

    def _renew_workers(self) -> None:
        """The encoder stays the same, so nothing else is made than what the two operations asked for."""
