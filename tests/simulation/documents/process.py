"""One simulated process: the real rooms, on the weathered store and a Redis that may fail at every call."""

from collections.abc import Callable
from typing import Any

import redis

from services.shared.model.aliases import with_alias
from services.shared.model.changes import edited, undeleted, without_version
from services.shared.model.clock import Clock
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.registry.extract import extract_missing
from services.shared.registry.fail import fail
from services.shared.view.stamp import Stamp
from speaker_registry.errors import (
    ExtractorOutOfMemory,
    VersionNotFound,
    VoiceDamaged,
    VoiceNotFound,
    VoiceUnreadable,
)
from speaker_registry.schemas import PromotionPolicy
from tests.memory_registry import Registry, id_of
from tests.simulation import scheduler
from tests.simulation.documents.queue import LeasedQueue, TakenJob
from tests.simulation.documents.request import current_request


class ProcessClock(Clock):
    """The clocks of one process: wrong by days, and standing still while its machine does."""

    def __init__(self, world: Any, process: "Process") -> None:
        self._world = world
        self._process = process

    def now(self) -> float:
        return float(self._world.time + self._process.skew)

    def monotonic(self) -> float:
        return float(self._world.time - self._process.suspended - self._process.stood_still)

    def since_boot(self) -> float:
        return float(self._world.time - self._process.stood_still)

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)

    def up_to(self, seconds: float) -> float:
        return float(self._world.random.uniform(0, seconds))

    def new_id(self) -> str:
        milliseconds = int(self.now() * 1000) & (2**48 - 1)
        return f"{milliseconds << 80 | 0x7 << 76 | self._world.random.getrandbits(76):032x}"


WAITS = "waits for its turn"


class Turn:
    """A lock between the actors of one process: who meets it held pauses until it is free."""

    def __init__(self) -> None:
        self.is_held = False

    def __enter__(self) -> None:
        while self.is_held:
            scheduler.pause(WAITS)
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False


class Process:
    """A process with its place in the world. It may be killed, and started again with nothing remembered."""

    def __init__(self, world: Any, name: str) -> None:
        self.world, self.name = world, name
        self.skew = world.random.choice([0.0, 0.0, -2.0, 2.0, -90_000.0, 400_000.0])
        self.suspended = self.stood_still = 0.0
        self.stands_until = self.unreachable_until = float("-inf")
        self.server = len(world.servers) - 1
        self.looked_at = float("-inf")
        self.lied_at: dict[str, float] = {}
        """The time at which a node that was behind last answered about an object."""
        self.start()

    def start(self) -> None:
        """Start with nothing remembered."""
        self.look_was_wrong = False
        """True while the last look at `_view.json` failed, or was answered by a node that was behind."""
        world = self.world
        self.registry = SimulatedRegistry(
            ProcessClock(world, self),
            world.store,
            lambda: world.servers[self.server],
            world.queue,
            world.fingerprints,
            weather=self._call_redis,
        )
        self.turn = Turn()
        self.registry.generation._lock = self.turn  # type: ignore[assignment]
        self.registry.world = world

    def _call_redis(self, what: str, call: Callable[[], Any]) -> Any:
        scheduler.pause(f"redis {what}")
        world, request = self.world, current_request()
        if world.time < self.unreachable_until or world.happens("redis_call_is_lost"):
            if request:
                request.met_no_view = True
            raise redis.ConnectionError("nobody answers")
        if request and "hmget" in what:
            # It may have been distrusted since this call was made, for another one.
            trusted = Stamp.parse(self.registry.generation._trusted).generation
            request.read_from = trusted or request.read_from
        if world.happens("redis_call_is_repeated"):
            call()
        found = call()
        if world.happens("redis_reply_is_lost"):
            if request:
                request.met_no_view = True
            raise redis.TimeoutError("the reply is lost")
        return found


class SimulatedRegistry(Registry):
    """The rooms, and for a few changes that no room makes yet the same one gate."""

    queue: LeasedQueue
    world: Any

    def move_alias(self, name: str, alias: str, number: int) -> SpeakerDocument:
        def decide(document: SpeakerDocument) -> SpeakerDocument:
            return with_alias(document, alias, _numbered(document, number), self.profiles.required)

        return self.speakers.change(id_of(name), decide, by="key", did="alias")

    def set_promotion(self, name: str, policy: PromotionPolicy) -> SpeakerDocument:
        def decide(document: SpeakerDocument) -> SpeakerDocument:
            if not document.live:
                raise VoiceNotFound("the voice was deleted")
            return edited(
                document,
                document.about.having(promotion=policy, pinned=policy == "manual"),
                self.profiles.required,
            )

        return self.speakers.change(id_of(name), decide, by="key", did="edit")

    def delete_version(self, name: str, number: int) -> SpeakerDocument:
        def decide(document: SpeakerDocument) -> SpeakerDocument:
            return without_version(document, _numbered(document, number), now=self.speakers.now())

        return self.speakers.change(id_of(name), decide, by="key", did="delete version")

    def undelete(self, name: str) -> SpeakerDocument:
        return self.speakers.change(id_of(name), undeleted, by="key", did="undelete")

    def extract_lost(self, name: str, number: int, profile: str) -> None:
        """Have an artifact made again whose bytes are lost, as a route does that meets it."""
        speaker, version = self.find_version(name, number)
        self.jobs.open(speaker.id, version, profile, self.profiles.fingerprint(profile))

    def extract_missing(self, name: str, number: int) -> None:
        speaker, version = self.find_version(name, number)
        extract_missing(self.jobs, self.profiles, speaker, version)

    def work_at(self, job: TakenJob, *, fails: bool, content: float) -> None:
        """Do one job as a worker does."""
        name = SpeakerId.parse(job.arguments["speaker"]).slug
        attempt = self.start(name, job.id, self.profiles.get(job.profile))
        if attempt is None:
            return
        if fails:
            error = ExtractorOutOfMemory("no memory")
            fail(self.speakers, self.jobs, self.profiles, attempt, error)
            if attempt.number < attempt.max_attempts:
                self.queue.put_back(job)
            return
        self.publish(attempt, content)

    def keep_house(self) -> None:
        """Look at some speakers that are due."""
        for due in self.speakers.agenda.due(3):
            try:
                again = self.settle(due.speaker_id.slug)
            except (VoiceDamaged, VoiceUnreadable):
                again = 60.0
            self.speakers.agenda.checked(due, again_in=again)


def _numbered(document: SpeakerDocument, number: int) -> str:
    """Return the id of the version with a number. Raises `VersionNotFound`."""
    for version in document.versions:
        if version.number == number:
            return version.vuid
    raise VersionNotFound("There is no such version.")
