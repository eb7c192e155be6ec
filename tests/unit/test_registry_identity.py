"""Tests of the document that says which registry a bucket belongs to, and of buckets that are refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from services.shared.bucket.connection import StoreUnfit
from services.shared.bucket.documents import Documents
from services.shared.bucket.layout import REGISTRY, VIEW
from services.shared.bucket.registry_identity import BucketCopied, RegistryDocument, adopt, open_identity
from services.shared.bucket.store import Object
from services.shared.configuration.store import StoreSettings
from services.shared.model.records import seal, unseal
from speaker_registry.errors import Unavailable
from tests.memory_registry import World


def settings(place: str = "s3://voices") -> StoreSettings:
    return StoreSettings(
        url=place, endpoint="http://127.0.0.1:9000", access_key_id="id", secret_access_key="s"
    )


@pytest.fixture
def world() -> World:
    return World()


def start(world: World, place: str = "s3://voices", do: Any = open_identity) -> RegistryDocument:
    """Start a process, or run a command, on the bucket."""
    return do(
        world.store,
        Documents(world.store, world.clock),
        settings(place),
        world.clock,
        now=lambda: int(world.clock.now()),
    )


def test_the_identity_is_made_once_and_stays(world: World) -> None:
    """The view in Redis is one of this bucket, whichever process looks at it."""
    first = start(world)
    before = world.store.get(REGISTRY)
    assert start(world) == first
    assert world.store.get(REGISTRY) == before
    assert (first.generation, first.layout, first.name) == (1, 2, "s3://voices at http://127.0.0.1:9000")
    assert "secret" not in before.decode()


def test_of_processes_that_start_at_once_all_have_the_same_identity(world: World) -> None:
    """Each of them found an empty bucket. Two views of one bucket would take each other's place for ever."""
    swap, others = world.store.swap, list[RegistryDocument]()

    def other_first(key: str, data: bytes, *, etag: str | None) -> str:
        world.store.swap = swap  # type: ignore[method-assign]
        others.append(start(world))
        return swap(key, data, etag=etag)

    world.store.swap = other_first  # type: ignore[method-assign]
    assert [start(world)] == others


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_reply_makes_no_second_identity(world: World, when: str) -> None:
    """A start that does not hear whether it made the identity looks, and then knows."""
    swap = world.store.swap

    def lose(key: str, data: bytes, *, etag: str | None) -> str:
        world.store.swap = swap  # type: ignore[method-assign]
        if when == "after":
            swap(key, data, etag=etag)
        raise Unavailable("The reply was lost.")

    world.store.swap = lose  # type: ignore[method-assign]
    assert start(world) == start(world)
    assert start(world).revision == 1


def test_a_copy_is_refused_until_it_is_adopted_and_the_original_stays_what_it_is(world: World) -> None:
    """Pointed at the same Redis, two registries would take each other's view for their own."""
    original = start(world)
    copy = World()
    copy.store.objects = dict(world.store.objects)
    copy.pass_time(1)
    with pytest.raises(BucketCopied, match=r"'s3://copy at .*' says that it is 's3://voices at") as caught:
        start(copy, "s3://copy")
    assert "SPEAKER_STORE_KNOWN_AS='s3://voices at http://127.0.0.1:9000'" in str(caught.value)
    adopted = start(copy, "s3://copy", adopt)
    assert start(copy, "s3://copy") == adopted
    assert adopted.identity != original.identity
    assert (adopted.generation, adopted.revision) == (2, 2)
    assert start(world) == original


def test_a_bucket_that_records_its_actual_location_is_accepted_under_any_name(world: World) -> None:
    """`adopt-bucket` without SPEAKER_STORE_KNOWN_AS records it, and the processes may have that setting."""
    first = start(world)
    documents = Documents(world.store, world.clock)
    named = settings().model_copy(update={"known_as": "an embedded registry"})
    assert open_identity(world.store, documents, named, world.clock, now=lambda: 0) == first


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"x" * 32, seal({"revision": 1}), seal({"revision": 1, "identity": "../x"})]
)
def test_a_damaged_document_is_refused_until_somebody_decides(world: World, body: bytes) -> None:
    """A copy must not pass for the original because what distinguishes them is damaged."""
    world.store.put(REGISTRY, body)
    with pytest.raises(StoreUnfit, match=r"'_registry\.json' of the bucket is damaged. Restore it"):
        start(world)
    assert world.store.get(REGISTRY) == body
    adopted = start(world, do=adopt)
    assert start(world) == adopted


@pytest.mark.parametrize("trace", ["_view.json", "_profiles/qwen3.json", "_keys/0123abcd.json"])
def test_a_bucket_in_use_whose_document_is_lost_gets_no_new_identity(world: World, trace: str) -> None:
    """The processes that still run have the former identity, and would no longer accept what Redis holds."""
    document = start(world)
    body = world.store.get(REGISTRY)
    world.store.put(trace, b"{}")
    world.store.delete([REGISTRY])
    with pytest.raises(StoreUnfit, match=rf"'_registry\.json' .* is lost, but '{trace}' .* empty Redis"):
        start(world)
    assert REGISTRY not in world.store.objects
    world.store.put(REGISTRY, body)
    assert start(world) == document
    world.store.delete([REGISTRY])
    adopted = start(world, do=adopt)
    assert start(world) == adopted


def test_objects_of_other_programs_are_no_registry(world: World) -> None:
    """The first start on such a bucket makes the identity."""
    for key in ("notes.txt", "_profiles/readme", "_keys/a/b", "default/photo.jpg"):
        world.store.put(key, b"x")
    assert start(world).generation == 1


def test_a_start_beside_one_that_is_ahead_has_the_same_identity(world: World) -> None:
    """The other process made the identity and began a view after this one had looked for the identity."""
    read, others = world.store.read, list[RegistryDocument]()

    def other_first(key: str) -> Object:
        if key == VIEW:
            world.store.read = read  # type: ignore[method-assign]
            others.append(start(world))
            world.store.put(VIEW, b"{}")
        return read(key)

    world.store.read = other_first  # type: ignore[method-assign]
    assert [start(world)] == others


@pytest.mark.parametrize("newer", [{"format": 2}, {"needs": ["x"]}, {"layout": 3}])
@pytest.mark.parametrize("do", [open_identity, adopt])
def test_a_bucket_of_a_newer_release_is_refused_and_not_changed(
    world: World, newer: dict[str, Any], do: Callable[..., Any]
) -> None:
    """This release would destroy what it does not understand, also if an operator adopts the bucket."""
    start(world)
    body = seal({**unseal(world.store.get(REGISTRY)), **newer})
    world.store.put(REGISTRY, body)
    with pytest.raises(StoreUnfit, match="a newer release has written the bucket: the"):
        start(world, do=do)
    assert world.store.get(REGISTRY) == body


@pytest.mark.parametrize("key", ["_registry/identity", "_place/000001." + "a" * 32, "_epochs/000000000001"])
@pytest.mark.parametrize("do", [open_identity, adopt])
@pytest.mark.parametrize("started", [True, False])
def test_a_bucket_of_an_earlier_release_is_refused_with_the_commands_that_move_it(
    world: World, key: str, do: Callable[..., Any], started: bool
) -> None:
    """Its voices, keys and profiles would be missing without a word. It is refused as well if an earlier
    release was started on a bucket of this one.
    """
    if started:
        start(world)
    before = world.store.objects.get(REGISTRY)
    world.store.put(key, b"{}")
    with pytest.raises(StoreUnfit) as caught:
        start(world, do=do)
    message = str(caught.value)
    assert f"it holds '{key.partition('/')[0]}/'" in message
    assert "`speaker-registry export FILE`" in message
    assert "`speaker-registry import FILE`" in message
    assert world.store.objects.get(REGISTRY) == before


def test_members_of_a_newer_release_are_kept(world: World) -> None:
    """An older release adopts a bucket during an upgrade, and must not drop what it does not know."""
    start(world)
    world.store.put(REGISTRY, seal({**unseal(world.store.get(REGISTRY)), "region": "eu"}))
    start(world, "s3://copy", adopt)
    assert json.loads(world.store.get(REGISTRY))["region"] == "eu"
