"""An object store in bad weather. Its swaps are true; whatever else a store may do wrong, it does."""

import builtins
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from services.shared.bucket.layout import VIEW, speaker_of
from services.shared.bucket.store import Listing, Moved, Object, StoredObject
from speaker_registry.errors import Unavailable
from tests.memory_store import MemoryStore, etag_of
from tests.simulation import scheduler
from tests.simulation.documents.request import current_request

_State = tuple[bytes, float]
_KEPT_STATES = 4
_MOST_LIES = 5
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


class Truth(MemoryStore):
    """The objects as they are, and were before."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.earlier: dict[str, list[_State | None]] = {}
        """The last states of each object. None stands for its absence."""

    def carry_out(self, kind: str, key: str, data: bytes, etag: str | None) -> None:
        """Do one write. Raises `Moved`."""
        before = self.objects.get(key)
        if kind == "swap":
            self.swap(key, data, etag=etag)
        elif kind == "put":
            self.put(key, data)
        else:
            self.delete([key])
        self.earlier[key] = [*self.earlier.get(key, []), before][-_KEPT_STATES:]


class WeatheredStore:
    """The store as processes meet it: with nodes that are behind, and calls that are lost or late."""

    is_local = False

    def __init__(self, world: Any, truth: Truth) -> None:
        self._world = world
        self._truth = truth
        self._behind: dict[str, tuple[int, _State | None]] = {}

    def now(self) -> datetime:
        return self._truth.now()

    # Reading

    def get(self, key: str) -> bytes:
        return self._read(key)[0]

    def read(self, key: str) -> Object:
        data, etag = self._read(key)
        return Object(data, etag)

    def _read(self, key: str) -> tuple[bytes, str]:
        scheduler.pause(f"get {key}")
        self._may_be_away(key)
        if speaker_of(key) and (request := current_request()):
            request.met_no_view |= not request.process.registry.generation._trusted
        if self._world.happens("node_is_behind"):
            self._fall_behind(key)
        state = self._state(key)
        if state is None:
            raise FileNotFoundError(key)
        if self._world.happens("body_is_cut"):
            _lie(self._world, key)
            return state[0][: len(state[0]) // 2], etag_of(state[0])
        return state[0], etag_of(state[0])

    def list(self, prefix: str) -> Listing:
        scheduler.pause(f"list {prefix}")
        self._may_be_away(prefix)
        keys = [key for key in sorted({*self._truth.objects, *self._behind}) if key.startswith(prefix)]
        if self._world.happens("listing_lacks_half"):
            for key in keys:
                if self._world.random.random() < 0.5:
                    self._fall_behind(key)
        found = [(key, self._state(key)) for key in keys]
        taken_at = self._truth.now()
        return Listing(tuple(_stored(key, state) for key, state in found if state), taken_at)

    def folders(self, prefix: str) -> builtins.list[str]:
        scheduler.pause(f"folders {prefix}")
        self._may_be_away(prefix)
        found = self._truth.folders(prefix)
        if self._world.happens("listing_lacks_half"):
            return [one for one in found if self._world.random.random() < 0.5]
        return found

    def _may_be_away(self, key: str) -> None:
        if key == VIEW and (request := current_request()):
            request.process.look_was_wrong = False
        if self._world.happens("request_is_lost"):
            _lie(self._world, key, harmless=True)
            raise Unavailable("The object store did not answer.")

    def _fall_behind(self, key: str) -> None:
        random = self._world.random
        states = [None, *self._truth.earlier.get(key, [])]
        self._behind[key] = (random.randint(1, _MOST_LIES), random.choice(states))

    def _state(self, key: str) -> _State | None:
        """Return an object as the node that answers knows it."""
        left, state = self._behind.get(key, (0, None))
        if self._world.is_calm or not left:
            self._behind.pop(key, None)
            return self._truth.objects.get(key)
        self._behind[key] = (left - 1, state)
        if state != self._truth.objects.get(key):
            _lie(self._world, key)
        return state

    # Writing

    def put(self, key: str, data: bytes) -> None:
        self._write("put", key, data, None)

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        self._write("swap", key, data, etag)
        return etag_of(data)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._write("delete", key, b"", None)

    def _write(self, kind: str, key: str, data: bytes, etag: str | None) -> None:
        scheduler.pause(f"{kind} {key}")
        world = self._world
        world.ledger.sent(key, data)
        if world.happens("request_is_lost"):
            raise Unavailable("The object store did not answer.")
        if world.happens("call_comes_late"):
            self._later(kind, key, data, etag)
            raise Unavailable("The object store did not answer in time.")
        if kind == "swap" and world.happens("swap_is_refused"):
            raise Moved
        self._carry_out(kind, key, data, etag)
        if world.happens("reply_is_lost"):
            if world.random.random() < 0.3:  # a proxy repeats the call
                self._later(kind, key, data, etag)
            if kind == "swap" and world.random.random() < 0.3:  # the client library repeated it at once
                raise Moved
            raise Unavailable("The object store did not answer in time.")

    def _later(self, kind: str, key: str, data: bytes, etag: str | None) -> None:
        random = self._world.random
        seconds = random.choice([1.0, MINUTE, 15 * MINUTE, 5 * HOUR, 2 * DAY, 6 * DAY])
        self._world.later(
            seconds * random.uniform(0.2, 1.2),
            f"late {kind} {key}",
            lambda: self._land(kind, key, data, etag),
        )

    def _land(self, kind: str, key: str, data: bytes, etag: str | None) -> None:
        try:
            self._carry_out(kind, key, data, etag)
        except Moved:
            self._world.note("the late call fails on its condition")

    def _carry_out(self, kind: str, key: str, data: bytes, etag: str | None) -> None:
        self._truth.carry_out(kind, key, data, etag)
        self._world.ledger.happened(key)


def _lie(world: Any, key: str, *, harmless: bool = False) -> None:
    """Note that the request which is running did not hear the truth."""
    request = current_request()
    if request is None:
        return
    if not harmless:
        request.was_lied_to = True
        request.process.lied_at[key] = world.time
    if key == VIEW:
        request.process.look_was_wrong = True


def _stored(key: str, state: _State) -> StoredObject:
    data, at = state
    return StoredObject(key, len(data), datetime.fromtimestamp(at, UTC), etag_of(data))
