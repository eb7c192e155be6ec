"""What an API process answers from memory: the real lane and the real event stream, one turn at a time.

Every answer from memory is held against what was acknowledged before the request.
"""

import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import redis

from services.registry_api.access.rate_limits import RateLimits
from services.registry_api.express.lane import ExpressLane, Offer
from services.registry_api.express.prepared import PreparedAnswers
from services.registry_api.protocol.callers import ANONYMOUS
from services.registry_api.serving.event_stream import EventStream
from services.shared.bucket.facts import read_speaker
from services.shared.bucket.keys import SpeakerId
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.redis_access import unavailable_without_redis
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.names import DEFAULT
from tests.simulation.ledger import Violation
from tests.simulation.process import Process
from tests.simulation.scheduler import pause
from tests.simulation.world import World

REPEATS = 6
"""How often a client asks for the same in a row, so that some answers come from memory."""

Result = TypeVar("Result")


class _WithoutWaiting:
    """Redis' stream for a coroutine that is run step by step: it never waits for events."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    async def xread(self, streams: Any, *, block: int, count: int) -> Any:
        with unavailable_without_redis():
            return self._client.xread(streams, count=count)

    async def xrevrange(self, name: str, *, count: int) -> Any:
        with unavailable_without_redis():
            return self._client.xrevrange(name, count=count)


class SteppedStream(EventStream):
    """The event stream of a simulated process. What would run in a thread is run at once."""

    def __init__(self, world: World, process: Process) -> None:
        index, leases = process.index, process.opened.leases
        super().__init__(
            "redis://127.0.0.1:1",
            index,
            leases,
            process=process.opened.clock.new_id(),
            now=lambda: world.time,
        )
        self._redis = _WithoutWaiting(index.ungated)  # type: ignore[assignment]

    async def _in_thread(self, do: Any) -> Any:
        return do()


class ProcessMemory:
    """What one API process keeps in memory."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self.events = SteppedStream(world, process)
        self.lane = ExpressLane(
            self.events, RateLimits.unlimited(), PreparedAnswers(1 << 20, 100), local=False
        )
        profiles = process.opened.profile_records
        self.events.subscribe(profiles.hear, profiles.look_anew)

    def listen(self) -> None:
        """Follow the event stream for one turn, as the process does all the time."""
        try:
            _run(self.events.turn())
        except (SpeakerRegistryError, redis.RedisError):
            self.events.interrupt()

    def ask(self, namespace: str, name: str, speaker_id: SpeakerId) -> None:
        """Ask for a voice several times, as an engine does. Raises `Violation`."""
        for _ in range(REPEATS):
            question = self.lane.question(b"GET", b"/v1/voices/" + name.encode().hex().encode(), [])
            assert question is not None
            answer = self.lane.answer(question, [])
            if isinstance(answer, tuple):
                self._world.counts["answered from memory"] += 1
                self._check(speaker_id, json.loads(answer[1]))
            elif answer is not None:
                self._answer(answer, namespace, name, speaker_id)
            pause("ask again")

    def _answer(self, offer: Offer, namespace: str, name: str, speaker_id: SpeakerId) -> None:
        """Answer in the ordinary way, and have the answer kept."""
        indexed = self._process.operations.speakers.find(namespace, name)
        offer.accept(
            ANONYMOUS,
            namespace,
            speakers=(str(speaker_id),),
            profiles=("ecapa",),
            route="/simulated",
            is_file=False,
        )
        pause("send the answer")
        headers = [(b"etag", b'"simulated"')]
        offer.observe_message({"type": "http.response.start", "status": 200, "headers": headers})
        offer.observe_message({"type": "http.response.body", "body": json.dumps(_shown(indexed)).encode()})

    def _check(self, speaker_id: SpeakerId, shown: dict[str, Any]) -> None:
        world, vuid = self._world, shown["vuid"]
        if world.ledger.must_be_gone(vuid, world.moment):
            raise Violation(f"version {vuid} is answered from memory after its delete was acknowledged")
        moved = world.ledger.moves_acknowledged.get(speaker_id, 0)
        default = read_speaker(world.truth, speaker_id).alias_facts.get(DEFAULT)
        if shown["moved"] < moved and default is not None and default.seq >= moved:
            raise Violation(f"default of {speaker_id} is answered from memory as before its last move")


def _shown(indexed: IndexedSpeaker) -> dict[str, Any]:
    """Return what a client sees of the voice's default version."""
    fact = indexed.speaker.alias_facts.get(DEFAULT)
    return {"vuid": indexed.speaker.default.vuid, "moved": fact.seq if fact else 0}


def _run(steps: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never waits for the event loop."""
    try:
        steps.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise AssertionError("it waits for the event loop")
