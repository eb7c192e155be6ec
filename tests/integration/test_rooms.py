"""The rooms of a registry of documents on a real store and a real Valkey: the life of a voice from its upload
to its erasure, with a Redis that loses everything and a copy that is behind.

The unit tests and the simulation use a store and a Redis in memory. This shows that the real ones keep what
those promise.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance import garbage_sweep
from services.shared.bucket.layout import document_key
from services.shared.bucket.store import ObjectStore
from services.shared.view.generation import Generation
from speaker_registry.errors import Unavailable, VoiceDeleted, VoiceNotFound
from tests.memory_registry import ECAPA, NS, PROFILES, Fingerprints, MemoryQueue, Registry, id_of
from tests.opened_registry import MovableClock

WREN = id_of("wren")
AT_ONCE = timedelta(seconds=-5)
"""A grace period that is over by every store's clock."""


class World:
    """A store and a Redis that are real, and the processes that use them."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self.store = store
        self._url = url
        self._queue, self._fingerprints = MemoryQueue(), Fingerprints()
        self._clock = MovableClock()
        self._started: list[Registry] = []

    def process(self) -> Registry:
        def generation(_: str, bucket: str, documents: Any, clock: Any, **__: Any) -> Generation:
            return Generation(self._url, bucket, documents, clock)

        started = Registry(
            self._clock,
            self.store,
            lambda: None,  # type: ignore[arg-type,return-value]
            self._queue,
            self._fingerprints,
            generation=generation,  # type: ignore[arg-type]
        )
        self._started.append(started)
        return started

    def close(self) -> None:
        for one in self._started:
            one.generation.close()

    def bytes_of_wren(self) -> list[str]:
        return [stored.key for stored in self.store.list(f"{NS}/d/wren/").objects]


@pytest.fixture
def world(swapping_store: ObjectStore, redis_client: Redis, valkey: ValkeyServer) -> Iterator[World]:
    started = World(swapping_store, valkey.url)
    yield started
    started.close()


@pytest.fixture
def registry(world: World) -> Registry:
    return world.process()


def states(registry: Registry, reference: int | str) -> set[str]:
    speaker, version = registry.find_version("wren", reference)
    return {registry.profiles.status(speaker, version, profile).state for profile in PROFILES}


def test_a_voice_is_registered_extracted_promoted_and_read_back(world: World, registry: Registry) -> None:
    """Every later version is served once it serves as much, and what was acknowledged is read back whole."""
    first = registry.register("Wren", 1)
    assert (first.version.number, registry.work(), states(registry, "latest")) == (1, 2, {"ready"})
    assert not registry.register("Wren", 1).created
    registry.register("wren", 2)
    assert registry.find_version("wren", "default")[1].number == 1
    registry.work()
    other = world.process()
    speaker, version = other.find_version("wren", "default")
    assert (version.number, speaker.document.newest.number, speaker.open_jobs) == (2, 2, ())
    assert other.blobs.clip(WREN, version) == b"clip 2"
    assert all(other.blobs.has_artifact(WREN, version, made) for [made] in version.artifacts.values())


def test_a_redis_that_lost_everything_costs_nothing_but_time(
    world: World, registry: Registry, redis_client: Redis
) -> None:
    """Ready artifacts are served at once, repeats are found, and lists come back with a rebuild."""
    made = registry.register("wren", 1)
    registry.work()
    registry.register("robin", 2)
    redis_client.flushall()
    assert states(world.process(), 1) == {"ready"}
    assert registry.register("wren", 1).version.vuid == made.version.vuid
    assert registry.register("wren", 3).version.number == 2
    assert registry.speakers.usage(NS) is None
    registry.rebuild()
    assert registry.speakers.view.names(NS, limit=9) == ["robin", "wren"]
    documents = [registry.document(name) for name in ("wren", "robin")]
    usage = registry.speakers.usage(NS)
    assert usage is not None
    assert (usage.voices, usage.bytes) == (2, sum(document.counts.bytes for document in documents))
    registry.settle("robin")
    assert registry.work() == 4  # both artifacts of each version that has none; robin's jobs were lost


def test_a_copy_that_is_behind_is_brought_up(
    world: World, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may lose Redis just after its commit. Nobody decides on what the copy says then."""
    registry.register("wren", 1)
    cut_off = world.process()

    def away(*_: Any, **__: Any) -> None:
        raise Unavailable("Redis is not available.")

    monkeypatch.setattr(cut_off.speakers.view, "apply", away)
    with pytest.raises(Unavailable):
        cut_off.register("wren", 2)
    assert registry.find("wren").document.newest.number == 1
    assert registry.register("wren", 3).version.number == 3
    with pytest.raises(Unavailable):
        cut_off.register("wren", 4)
    registry.settle("wren")
    assert registry.find("wren").document == registry.document("wren")
    assert registry.find("wren").document.newest.number == 4


def test_what_is_deleted_stays_deleted_and_is_erased(
    world: World, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload and an artifact that come late are refused, and no byte of the person is left at last."""
    monkeypatch.setattr(garbage_sweep, "OLD", AT_ONCE)
    job = registry.register("wren", 1).jobs["ecapa"]
    attempt = registry.start("wren", job, ECAPA)
    assert attempt is not None
    assert registry.delete("wren").document.newest.number == 1
    assert not registry.publish(attempt)
    with pytest.raises(VoiceNotFound):
        world.process().find("wren")
    registry.erase("wren", grace=AT_ONCE)
    assert len(world.bytes_of_wren()) <= 1  # the late artifact, which no document ever named
    registry.sweep("wren")
    assert world.bytes_of_wren() == []
    document = registry.document("wren")
    assert (document.key, document.versions, document.dead, document.marks.number) == (None, (), (), 1)
    assert registry.register("wren", 2).version.number == 2


def test_an_upload_that_a_delete_overtakes_is_refused(world: World, registry: Registry) -> None:
    """The store decides who was first, also where the one that lost stood still with its bytes stored."""
    registry.register("wren", 1)
    late = world.process()
    store_clip = late.blobs.store_clip

    def store_and_be_overtaken(*arguments: Any) -> None:
        store_clip(*arguments)
        registry.delete("wren")

    late.blobs.store_clip = store_and_be_overtaken  # type: ignore[method-assign]
    with pytest.raises(VoiceDeleted):
        late.register("wren", 2)
    assert not registry.document("wren").live
    assert document_key(WREN) in [stored.key for stored in world.store.list(f"{NS}/s/").objects]
