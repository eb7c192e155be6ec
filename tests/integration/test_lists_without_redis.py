"""Tests of lists while the index cannot answer: they come from the facts, page by page,
and leave no voice out.
"""

import random
from collections.abc import Iterator
from itertools import count, repeat
from typing import Any, NoReturn

import pytest

from services.shared.bucket.store import Store
from services.shared.index.gate import GateClosed
from tests.integration.storage import NAMESPACE, Storage, speaker_id

NAMES = ["b", "d", "Zoë", "ann marie", "x-ray", "c", "Zoé", "a", "e.", "f"]
"""Plain names, and five whose slugs are hashes."""


def walk(storage: Storage, *, limit: int, trusted: Iterator[bool]) -> list[str]:
    """Return the names as a client sees them, page by page. Each page is listed with an index that is
    trusted, or is not.
    """
    told: list[str] = []
    after, more = "", True
    while more:
        with pytest.MonkeyPatch.context() as patches:
            if not next(trusted):
                patches.setattr(storage.index, "names", refuse)
            page = storage.operations.pages.page(NAMESPACE, after=after, limit=limit)
        told += [indexed.speaker.newest.record.name for indexed in page.speakers]
        after, more = page.last, page.more
    return told


def refuse(*_: object, **__: object) -> NoReturn:
    raise GateClosed


def test_pages_of_facts_tell_every_voice_once(storage: Storage):
    """Pages of facts list every voice once, including names whose slugs are hashes, of which only a record
    holds the key.
    """
    for name in NAMES:
        storage.register(name)
    storage.delete("b")
    for limit in (1, 2, 3, 20):
        told = walk(storage, limit=limit, trusted=repeat(False))
        assert sorted(told) == sorted(set(NAMES) - {"b"})


@pytest.mark.parametrize("seed", range(20))
def test_a_list_leaves_nobody_out_when_the_index_comes_and_goes_meanwhile(storage: Storage, seed: int):
    """A list leaves no voice out when the index fails and returns between pages. The two orders differ, so a
    cursor has to record what both have listed.
    """
    for name in NAMES[: 4 + seed % 7]:
        storage.register(name)
    chance = random.Random(seed)
    trusted = (chance.random() < 0.5 for _ in count())
    assert set(walk(storage, limit=1 + seed % 3, trusted=trusted)) == set(NAMES[: 4 + seed % 7])


def test_a_page_of_facts_reads_the_records_of_its_voices_only(storage: Storage):
    """A page of facts reads the records of its own voices only. One list over 300 voices took 900 requests to
    the bucket, also of other namespaces.
    """
    for number in range(30):
        storage.register(f"voice-{number:02}")
    with pytest.MonkeyPatch.context() as patches:
        listed = noted(patches, storage.store, "list")
        read = noted(patches, storage.store, "get")
        walked = noted(patches, storage.store, "folders")
        page = storage.operations.pages._page_of_facts(NAMESPACE, "voice-06", 5)
    told = [f"voice-{number:02}" for number in range(7, 12)]
    assert [indexed.speaker.newest.record.name for indexed in page.speakers] == told
    assert listed == [speaker_id(name).prefix for name in told]
    assert len(read) == 5
    assert walked == [f"{NAMESPACE}/v/"]


def noted(patches: pytest.MonkeyPatch, store: Store, method: str) -> list[str]:
    """Return what a method is called with from now on."""
    calls: list[str] = []
    real = getattr(store, method)

    def call(about: str) -> Any:
        calls.append(about)
        return real(about)

    patches.setattr(store, method, call)
    return calls
