"""Lists while the index cannot tell: from the facts, page by page, with nobody left out."""

import random
from collections.abc import Iterator
from itertools import count, repeat
from pathlib import Path
from typing import Any, NoReturn

import pytest

from services.embedded.valkey import ValkeyServer
from services.shared.bucket.store import Store
from services.shared.index.gate import GateClosed
from tests.integration.storage import NAMESPACE, Storage, speaker_id


@pytest.fixture
def storage(tmp_path: Path, valkey: ValkeyServer, redis_client: object) -> Iterator[Storage]:
    with Storage(tmp_path / "bucket", valkey.url) as storage:
        yield storage


NAMES = ["b", "d", "Zoë", "ann marie", "x-ray", "c", "Zoé", "a", "e.", "f"]
"""Plain ones, and five whose slugs are hashes."""


def walk(storage: Storage, *, limit: int, trusted: Iterator[bool]) -> list[str]:
    """Names as a client is told them, page by page; each page with an index that is trusted, or is not."""
    told: list[str] = []
    after, more = "", True
    while more:
        with pytest.MonkeyPatch.context() as patches:
            if not next(trusted):
                patches.setattr(storage.index, "names", refuse)
            page = storage.registrar.page(NAMESPACE, after=after, limit=limit)
        told += [indexed.speaker.newest.record.name for indexed in page.speakers]
        after, more = page.last, page.more
    return told


def refuse(*_: object, **__: object) -> NoReturn:
    raise GateClosed


def test_pages_of_facts_tell_every_voice_once(storage: Storage):
    """Names whose slugs are hashes as well, of which only a record tells the key."""
    for name in NAMES:
        storage.register(name)
    storage.registrar.delete(NAMESPACE, "b")
    for limit in (1, 2, 3, 20):
        told = walk(storage, limit=limit, trusted=repeat(False))
        assert sorted(told) == sorted(set(NAMES) - {"b"})


@pytest.mark.parametrize("seed", range(20))
def test_a_list_leaves_nobody_out_when_the_index_comes_and_goes_meanwhile(storage: Storage, seed: int):
    """The two orders differ, so a cursor has to say what both have told."""
    for name in NAMES[: 4 + seed % 7]:
        storage.register(name)
    chance = random.Random(seed)
    trusted = (chance.random() < 0.5 for _ in count())
    assert set(walk(storage, limit=1 + seed % 3, trusted=trusted)) == set(NAMES[: 4 + seed % 7])


def test_a_page_of_facts_reads_the_records_of_its_voices_only(storage: Storage):
    """One list over 300 voices took 900 requests to the bucket, also of other namespaces."""
    for number in range(30):
        storage.register(f"voice-{number:02}")
    with pytest.MonkeyPatch.context() as patches:
        listed = noted(patches, storage.store, "list")
        read = noted(patches, storage.store, "get")
        walked = noted(patches, storage.store, "folders")
        page = storage.registrar._page_of_facts(NAMESPACE, "voice-06", 5)
    told = [f"voice-{number:02}" for number in range(7, 12)]
    assert [indexed.speaker.newest.record.name for indexed in page.speakers] == told
    assert listed == [speaker_id(name).prefix for name in told]
    assert len(read) == 5
    assert walked == [f"{NAMESPACE}/v/"]


def noted(patches: pytest.MonkeyPatch, store: Store, method: str) -> list[str]:
    """What a method is called with from now on."""
    calls: list[str] = []
    real = getattr(store, method)

    def call(about: str) -> Any:
        calls.append(about)
        return real(about)

    patches.setattr(store, method, call)
    return calls
