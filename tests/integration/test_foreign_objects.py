"""Tests of foreign objects in the bucket, put there by hand or by mistake under keys like the registry's own.
Each harms the voice that it belongs to, and nothing else.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.shared.bucket.layout import document_key, profile_key
from services.shared.registry.lookup import find
from speaker_registry.errors import VoiceDamaged, VoiceNotFound
from speaker_registry.names import parse_speaker_name
from tests.opened_registry import NS, OpenedRegistry, folder_settings, id_of

PROFILE = "qwen3-tts-0.6b"
NEXT = "sha256:" + "2" * 64
YEARS = 200 * 365 * 86_400
ALICE = document_key(id_of("alice"))


@pytest.fixture
def registry(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis) -> Iterator[OpenedRegistry]:
    """A registry in which Alice and Bob are ready."""
    with closing(OpenedRegistry(folder_settings(tmp_path / "bucket"), valkey.url)) as registry:
        registry.make_ready("alice", "bob")
        yield registry


def rebuild(registry: OpenedRegistry) -> None:
    """Fill another view from the bucket alone, and sweep."""
    registry.redis.flushall()
    registry.opened.generation.check()
    registry.housekeeping().turn()
    assert registry.view.is_complete()


def put_document(registry: OpenedRegistry, body: bytes) -> None:
    """Put another document of Alice's in place of hers, as a person with access to the bucket does."""
    registry.opened.store.swap(ALICE, body, etag=registry.opened.store.read(ALICE).etag)


def check_bob(registry: OpenedRegistry) -> None:
    """Check that Bob's voice is served and listed and can be changed."""
    number = registry.find("bob").document.marks.number
    assert "bob" in registry.view.names(NS, limit=9)
    assert registry.register("bob", 100 + number).version.number == number + 1
    registry.worker.finish_all("bob")
    served = registry.served("bob")
    assert served is not None
    assert served[0] == number + 1


@pytest.mark.parametrize(
    "key",
    [
        f"{NS}/s/notes.txt",
        f"{NS}/s/Carol.json",
        f"{NS}/s/carol.json/old",
        f"{NS}/s/carol/r/1.json",
        f"{NS}/d/bob/notes.txt",
        f"{NS}/d/bob/{'0' * 32}/other",
        f"{NS}/d/Carol/{'0' * 32}/clip",
        "Carol/s/carol.json",
        "_keys/notes.txt",
        "_profiles/carol.json",
        "notes.txt",
    ],
)
def test_what_belongs_to_no_voice_is_left_alone(registry: OpenedRegistry, key: str) -> None:
    """A sweep removes nothing that the registry cannot have stored, and no list shows it."""
    registry.opened.store.put(key, b"of somebody else")
    rebuild(registry)
    assert registry.view.names(NS, limit=9) == ["alice", "bob"]
    assert registry.opened.store.get(key) == b"of somebody else"
    check_bob(registry)


def test_a_foreign_document_harms_its_own_voice_only(registry: OpenedRegistry) -> None:
    """That voice can be deleted and registered again, and none of its numbers comes twice."""
    put_document(registry, b"of somebody else")
    rebuild(registry)
    with pytest.raises(VoiceDamaged, match=ALICE):
        registry.find("alice")
    with pytest.raises(VoiceDamaged):
        registry.register("alice", 3)
    check_bob(registry)
    registry.delete("alice")
    assert registry.register("alice", 3).version.number > 1
    registry.worker.finish_all("alice")
    rebuild(registry)
    assert registry.served("alice") is not None
    check_bob(registry)


def test_a_voice_from_the_future_can_be_deleted_and_registered_again(registry: OpenedRegistry) -> None:
    """What its document says is believed, but for its own voice only."""
    document = registry.document("alice")
    marks = document.marks.having(number=10**9, created_at=document.marks.created_at + YEARS)
    later = document.having(marks=marks, revision=10**12, at=document.at + YEARS)
    put_document(registry, later.to_bytes())
    rebuild(registry)
    served = registry.served("alice")
    assert served is not None
    assert registry.find("alice").document.revision >= later.revision
    assert registry.register("alice", 3).version.number == marks.number + 1
    registry.delete("alice")
    with pytest.raises(VoiceNotFound):
        find(registry.speakers, NS, parse_speaker_name("alice"))
    again = registry.register("alice", 4).version
    assert (again.number, again.created_at > marks.created_at) == (marks.number + 2, True)
    rebuild(registry)
    assert registry.find("alice").document == registry.document("alice")
    check_bob(registry)


def test_a_foreign_document_of_a_profile_is_followed_by_the_next_workers(registry: OpenedRegistry) -> None:
    """The worker that starts next announces what it makes, and its document survives a loss of Redis."""
    records, store, key = registry.opened.profile_records, registry.opened.store, profile_key(PROFILE)
    registry.redis.flushall()
    store.swap(key, b"of somebody else", etag=store.read(key).etag)
    records.clear_cache()
    assert records.read(PROFILE).current is None
    for fingerprint in (registry.worker.fingerprint, NEXT):
        registry.worker.announce(fingerprint)
        registry.redis.flushall()
        records.clear_cache()
        assert records.fingerprint(PROFILE) == fingerprint
