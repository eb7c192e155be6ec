"""One history, told by its seed: a while of everything under faults; then rest; then the reckoning."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from services.shared.bucket.stored_bytes import Unsound
from services.shared.model.speaker import SpeakerId
from services.shared.view.generation import SETTLED_SECONDS
from services.shared.view.view_document import ASKED_SECONDS
from speaker_registry.errors import AudioNotFound, Unavailable, VoiceNotFound
from speaker_registry.names import DEFAULT, LATEST
from speaker_registry.schemas import PromotionPolicy
from tests.memory_registry import PROFILES, id_of
from tests.simulation.documents.ledger import Violation
from tests.simulation.documents.process import Process
from tests.simulation.documents.request import Request
from tests.simulation.documents.rest import come_to_rest, reckon
from tests.simulation.documents.store import DAY, HOUR, MINUTE
from tests.simulation.documents.weather import Weather
from tests.simulation.documents.world import World
from tests.simulation.scheduler import Actor

STEPS = 1500
_CROWD = 8
_SHOWN = 60


class Broken(AssertionError):
    """A violation, with the seed that replays it and what led to it."""

    def __init__(self, seed: int, violation: BaseException, world: World) -> None:
        last = "\n".join(
            f"{time - 1.8e9:12.2f}  {who:26}  {what}" for time, who, what in world.events[-_SHOWN:]
        )
        super().__init__(f"seed {seed}: {violation}\nthe last of {len(world.events)} events:\n{last}")
        self.violation = violation


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload of a client, which may be sent again."""

    name: str
    content: int
    key: str | None
    is_embedding: bool
    spoken: bool


class History:
    """The course of things in one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._contents = 0
        self._again: list[Upload] = []
        self._graces = world.random.choice([HOUR, 3 * DAY])
        self._errands = world.theme.errands or self._draw_errands()
        self._hurry = world.random.choice([0.01, 0.2, 1.0])
        """The share of idle time that passes. A small one lets operations overlap."""

    def _draw_errands(self) -> Mapping[str, float]:
        """Return what may begin at each step, and how often."""
        often = self.world.random.uniform
        return {
            "register": often(1, 8),
            "read": 5.0,
            "delete": often(0, 1.5),
            "delete version": often(0, 1),
            "undelete": often(0, 1),
            "alias": often(0, 2),
            "cancel": often(0, 1),
            "work": 8.0,
            "settle": 3.0,
            "sweep": often(0.3, 3),
            "erase": often(0, 1),
            "rebuild": often(0.2, 1.5),
            "promotion": often(0, 1),
        }

    def _begin(self, errand: str) -> None:
        begins: dict[str, Callable[[], None]] = {
            "register": self._upload,
            "read": self._read,
            "delete": self._delete,
            "delete version": self._delete_version,
            "undelete": self._undelete,
            "alias": self._move_alias,
            "cancel": self._cancel,
            "work": self._work,
            "settle": self._keep_house,
            "sweep": self._sweep,
            "erase": self._erase,
            "rebuild": self._rebuild,
            "promotion": self._set_promotion,
        }
        begins[errand]()

    # The course of things

    def live(self, steps: int) -> None:
        world, random = self.world, self.world.random
        errands, odds = list(self._errands), list(self._errands.values())
        for _ in range(steps):
            world.advance(random.expovariate(1 / world.theme.step_seconds))
            world.strike()
            awake = world.awake()
            if len(awake) < _CROWD and random.random() < 0.2:
                self._begin(random.choices(errands, odds)[0])
            if awake and random.random() > 0.01:
                world.step(random.choice(awake))
            else:
                longest = random.choice([1.0, 10.0, MINUTE, 20 * MINUTE, 3 * HOUR, DAY])
                self._idle(longest * random.random() * self._hurry)
            if world.ledger.damaged and random.random() < 0.02:
                self._delete()  # an operator gives the damaged voice up

    def _idle(self, seconds: float) -> None:
        """Let time pass in which processes look several times, so that one left behind can ask and begin."""
        for part in (SETTLED_SECONDS + 2, ASKED_SECONDS + 2):
            if seconds > 2 * part:
                self.world.advance(part)
        self.world.advance(seconds)
        if seconds > SETTLED_SECONDS:
            self._keep_house()

    def _start(self, kind: str, work: Callable[[Process, Request, str], Any], name: str = "") -> Actor:
        world = self.world
        process = world.random.choice(world.processes)
        name = name or world.random.choice(world.names)
        return world.spawn(kind, process, name, lambda request: work(process, request, name))

    def _number(self, name: str) -> int:
        """Return the number of a version, mostly of one that is there."""
        versions = self.world.ledger.newest[id_of(name)].versions
        if versions and self.world.random.random() < 0.9:
            return self.world.random.choice(versions).number
        return self.world.random.randint(1, 5)

    # Clients

    def _upload(self) -> None:
        random = self.world.random
        if self._again and random.random() < 0.5:
            self._send(self._again.pop(0))
            return
        self._contents += 1
        key = f"key {self._contents}" if random.random() < 0.7 else None
        upload = Upload(
            random.choice(self.world.names),
            self._contents,
            key,
            is_embedding=random.random() < 0.1,
            spoken=random.random() < 0.8,
        )
        self._send(upload)

    def _send(self, upload: Upload) -> None:
        ledger = self.world.ledger

        def work(process: Process, request: Request, name: str) -> None:
            registry = process.registry
            fields: dict[str, Any] = {"idempotency_key": upload.key}
            if upload.is_embedding:
                made = registry.register_embedding(name, upload.content, **fields)
            else:
                fields["ref_text"] = "hello" if upload.spoken else None
                made = registry.register(name, upload.content, **fields)
            ledger.told(request, made.speaker.id, made.speaker.document, is_commit=made.created)
            if not any(made.version.vuid in (v.vuid for v in one.versions) for one in self._line(name)):
                raise Violation(f"1: an upload of {name} was acknowledged, and is nowhere")

        actor = self._start("register", work, upload.name)

        def then(outcome: str) -> None:
            if isinstance(actor.error, Unavailable) or actor.killed:
                self._again.append(upload)

        actor.then = then

    def _line(self, name: str) -> list[Any]:
        return list(self.world.ledger.line[id_of(name)].values())

    def _read(self) -> None:
        random = self.world.random
        profile = random.choice(PROFILES)

        def work(process: Process, request: Request, name: str) -> None:
            references: list[int | str] = [DEFAULT, LATEST, self._number(name), self._number(name)]
            reference = random.choice(references)
            read(self.world, process, request, name, reference, profile.name)

        self._start("read", work)

    def _delete(self) -> None:
        def work(process: Process, request: Request, name: str) -> None:
            try:
                process.registry.delete(name)
            except VoiceNotFound:
                self.world.ledger.deleted_nothing(request, id_of(name))

        self._start("delete", work)

    def _delete_version(self) -> None:
        self._change("delete version", lambda registry, name, number: registry.delete_version(name, number))

    def _undelete(self) -> None:
        self._change("undelete", lambda registry, name, _: registry.undelete(name))

    def _move_alias(self) -> None:
        alias = self.world.random.choice([DEFAULT, "prod"])
        self._change("alias", lambda registry, name, number: registry.move_alias(name, alias, number))

    def _set_promotion(self) -> None:
        policy: PromotionPolicy = self.world.random.choice(["on_ready", "manual"])
        self._change("edit", lambda registry, name, _: registry.set_promotion(name, policy))

    def _change(self, kind: str, change: Callable[[Any, str, int], Any]) -> None:
        def work(process: Process, request: Request, name: str) -> None:
            document = change(process.registry, name, self._number(name))
            self.world.ledger.told(request, id_of(name), document, is_commit=True)

        self._start(kind, work)

    def _cancel(self) -> None:
        def work(process: Process, request: Request, name: str) -> None:
            jobs = process.registry.find(name).open_jobs
            if jobs:
                process.registry.cancel(self.world.random.choice(jobs).job_id)

        self._start("cancel", work)

    # Workers and housekeeping

    def _work(self) -> None:
        self._start("work", lambda process, _, name: work(self.world, process))

    def _keep_house(self) -> None:
        self._start("settle", lambda process, *_: process.registry.keep_house())

    def _sweep(self) -> None:
        self._start("sweep", lambda process, _, name: process.registry.sweep(name))

    def _erase(self) -> None:
        self._start("erase", lambda process, _, name: erase(process, name, self._graces))

    def _rebuild(self) -> None:
        self._start("rebuild", lambda process, *_: process.registry.rebuild())


def read(
    world: World, process: Process, request: Request, name: str, reference: int | str, profile: str
) -> None:
    """Look a voice up, and take its clip and an artifact, as an engine does."""
    registry, ledger, speaker_id = process.registry, world.ledger, id_of(name)
    try:
        speaker = registry.find(name)
        ledger.told(request, speaker_id, speaker.document)
        speaker, version = registry.find_version(name, reference)
    except VoiceNotFound:
        ledger.told_none(request, speaker_id)
        return
    ledger.told(request, speaker_id, speaker.document)
    try:
        registry.blobs.clip(speaker_id, version)
    except AudioNotFound:
        pass  # it was registered with an embedding
    except Unsound:
        _judge_missing(world, request, speaker_id, version.vuid, "clip")
    status = registry.profiles.status(speaker, version, registry.profiles.get(profile))
    if status.artifact is None:
        if status.state == "pending" and status.job_id is None:
            registry.extract_missing(name, version.number)
        return
    try:
        registry.blobs.artifact(speaker_id, version, status.artifact)
    except Unsound:
        if not any(status.artifact.object in key for key in ledger.lost):
            _judge_missing(world, request, speaker_id, version.vuid, "artifact", status.artifact.object)
        registry.extract_lost(name, version.number, profile)


def _judge_missing(
    world: World, request: Request, speaker_id: SpeakerId, vuid: str, what: str, object_id: str = ""
) -> None:
    """See that bytes which a reader did not find were not owed to it."""
    document = world.ledger.newest[speaker_id]
    is_named = object_id in document.names_of_bytes if object_id else document.version(vuid) is not None
    if is_named and not request.was_lied_to:
        raise Violation(f"4: the {what} of {speaker_id} cannot be read, and its document names it")


def work(world: World, process: Process) -> None:
    """Take a job and do it. One in twenty attempts fails."""
    job = world.queue.take(world.time)
    if job is None:
        return
    fails = not world.is_calm and world.random.random() < 0.05
    process.registry.work_at(job, fails=fails, content=world.random.random())
    world.queue.finish(job)


def erase(process: Process, name: str, grace: float) -> None:
    process.registry.erase(name, grace=timedelta(seconds=grace))


def run(seed: int, *, theme: str | None = None, steps: int = STEPS) -> World:
    """Live through one history. Raises `Broken`.

    Args:
        theme: the name of its theme. By default the seed draws one.
    """
    world = World(seed, theme)
    history = History(world)
    world.weather = Weather.draw(world.random, world.theme)
    try:
        history.live(steps)
        come_to_rest(world)
        reckon(world)
    except Violation as violation:
        raise Broken(seed, violation, world) from violation
    return world
