"""The memory of artifacts: bounded, fair, safe to share."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speaker_registry.artifact import Artifact
from speaker_registry.cache import ENTRY_OVERHEAD_BYTES, ArtifactCache, Key
from tests.unit.sdk.fake_registry import ECAPA, FakeTime, artifact_file

ALICE_FILE = artifact_file()
ALICE = Artifact.parse(ALICE_FILE)


def key(speaker: str, reference: int | str = 1, scope: str = "s") -> Key:
    return Key(scope, speaker, reference, ECAPA)


def artifact(name: str, size: int = 1000) -> Artifact:
    """Return an artifact of a given size, as far as the cache can tell."""
    return replace(ALICE, digest=f"sha256:{name}", size=size)


def filled(cache: ArtifactCache, *names: str, size: int = 1000) -> None:
    for name in names:
        cache.add(key(name), artifact(name, size), asked_at=cache.now())


def held(cache: ArtifactCache, names: str) -> str:
    return "".join(name for name in names if cache.held(key(name)))


def test_bytes_are_bounded():
    """A million voices must not take an engine's memory."""
    cache = ArtifactCache(max_bytes=3 * (1000 + ENTRY_OVERHEAD_BYTES))
    filled(cache, *"abcde")
    assert held(cache, "abcde") == "cde"
    assert cache.stats().bytes == cache.max_bytes


def test_entries_are_bounded():
    """Many small artifacts cost more than their bytes."""
    cache = ArtifactCache(max_entries=2)
    filled(cache, *"abc")
    assert held(cache, "abc") == "bc"


def test_what_was_used_least_recently_goes_first():
    """The voices that are spoken all day stay."""
    cache = ArtifactCache(max_entries=3)
    filled(cache, *"abc")
    cache.fresh(key("a"), 1e9)
    filled(cache, "d")
    assert held(cache, "abcd") == "acd"


@pytest.mark.parametrize("limit", ["max_bytes", "max_entries", "max_disk_bytes"])
@pytest.mark.parametrize("value", [-1, math.nan, "4 GB", None], ids=str)
def test_a_limit_that_is_no_number_from_zero_on_is_refused(limit: str, value: object):
    """It would otherwise fail in the middle of a later fetch, or limit nothing."""
    with pytest.raises(ValueError, match=f"{limit} is .*accepted: a number from 0"):
        ArtifactCache(**{limit: value})


def test_one_that_is_larger_than_everything_is_not_kept():
    """It would throw all others out and then not fit."""
    cache = ArtifactCache(max_bytes=10_000)
    filled(cache, "a")
    filled(cache, "b", size=10_000)
    assert held(cache, "ab") == "a"


def test_the_same_artifact_under_two_references_is_one_entry():
    """`alice` and `alice@1`."""
    cache = ArtifactCache()
    for reference in ("default", 1):
        cache.add(key("alice", reference), ALICE, asked_at=0.0)
    assert cache.stats().entries == 1
    assert cache.stats().bytes == ALICE.size + ENTRY_OVERHEAD_BYTES
    assert cache.held(key("alice", 1)) is cache.held(key("alice", "default")) is ALICE


def test_references_are_bounded_too():
    """A client that asks for the same artifact under ever new names must not fill the memory with names."""
    cache = ArtifactCache(max_entries=10)
    for number in range(1, 1000):
        cache.add(key("alice", number), ALICE, asked_at=cache.now())
    assert len(cache._confirmations) == 40
    assert cache.held(key("alice", 999)) is ALICE


def test_a_reference_in_use_outlives_those_that_are_not():
    """It is the one that spares a transfer."""
    cache = ArtifactCache(max_entries=1)
    for number in range(1, 5):
        cache.add(key("alice", number), ALICE, asked_at=cache.now())
    cache.fresh(key("alice", 1), 1e9)
    cache.add(key("alice", 5), ALICE, asked_at=cache.now())
    assert cache.held(key("alice", 1)) is ALICE
    assert cache.held(key("alice", 2)) is None


def test_a_cache_without_entries_keeps_nothing():
    """A client without a cache is made so."""
    cache = ArtifactCache(max_entries=0)
    filled(cache, "a")
    assert cache.held(key("a")) is None
    assert cache.stats().entries == len(cache._confirmations) == 0


def test_of_two_answers_that_crossed_the_later_question_counts():
    """A slow answer about an older state must not undo a newer one."""
    cache = ArtifactCache()
    cache.add(key("alice"), artifact("new"), asked_at=2.0)
    cache.add(key("alice"), artifact("old"), asked_at=1.0)
    assert cache.held(key("alice")) == artifact("new")


@pytest.mark.parametrize("whole", [True, False])
def test_an_answer_from_before_it_was_gone_does_not_bring_it_back(tmp_path: Path, *, whole: bool):
    """A slow answer may arrive after the registry has said that the voice was deleted."""
    time = FakeTime()
    cache, another = (ArtifactCache(clock=time, directory=tmp_path) for _ in range(2))
    asked_at = cache.now()
    time.now += 1
    if whole:
        cache.forget_speaker("s", "alice")
    else:
        cache.forget(key("alice"))
    cache.add(key("alice"), ALICE, asked_at, ALICE_FILE)
    cache.confirm(key("alice"), ALICE, asked_at)
    for one in (cache, another):
        one.recall(key("alice"))
        assert one.held(key("alice")) is None
    time.now += 1
    cache.add(key("alice"), ALICE, cache.now(), ALICE_FILE)
    another.recall(key("alice"))
    for one in (cache, another):
        found = one.held(key("alice"))
        assert found is not None
        assert found.digest == ALICE.digest


def test_what_another_process_kept_before_it_was_gone_does_not_come_back(tmp_path: Path):
    time = FakeTime()
    cache, another = (ArtifactCache(clock=time, directory=tmp_path) for _ in range(2))
    asked_at = cache.now()
    time.now += 1
    cache.forget_speaker("s", "alice")
    another.add(key("alice"), ALICE, asked_at, ALICE_FILE)
    cache.recall(key("alice"))
    assert cache.held(key("alice")) is None


ID = f"voice_{'0' * 32}_alice"


@pytest.mark.parametrize(("kept", "told"), [("alice", ID), (ID, "alice")])
def test_what_is_known_of_a_voice_holds_for_its_name_and_its_id(tmp_path: Path, kept: str, told: str):
    """A voice that was deleted by its id must not be served by its name, nor the other way round."""
    time = FakeTime()
    cache, another = (ArtifactCache(clock=time, directory=tmp_path) for _ in range(2))
    bob_file = artifact_file("bob")
    for speaker, file in ((kept, ALICE_FILE), ("bob", bob_file)):
        cache.add(key(speaker), Artifact.parse(file), cache.now(), file)
    time.now += 1
    assert cache.fresh(key(kept), 60)
    cache.expire("s", told)
    assert cache.fresh(key(kept), 60) is None
    assert cache.stale(key(kept), 60) is None
    assert cache.fresh(key("bob"), 60)
    cache.forget_speaker("s", told)
    for speaker in (kept, "bob"):
        another.recall(key(speaker))
        assert [bool(one.held(key(speaker))) for one in (cache, another)] == [speaker == "bob"] * 2


def test_age_is_that_of_the_last_confirmation():
    """A 304 makes what we hold as good as new."""
    time = FakeTime()
    cache = ArtifactCache(clock=time)
    filled(cache, "a")
    time.now += 10
    assert cache.fresh(key("a"), 9) is None
    assert cache.fresh(key("a"), 10) is not None
    cache.confirm(key("a"), artifact("a"), asked_at=time.now)
    assert cache.fresh(key("a"), 0) is not None


def test_forgetting_takes_the_bytes_along():
    """Erased under one name is erased under all of them."""
    cache = ArtifactCache()
    for reference in ("default", 1):
        cache.add(key("alice", reference), ALICE, asked_at=0.0)
    cache.forget(key("alice", "default"))
    cache.forget(key("never seen"))
    assert cache.held(key("alice", 1)) is None
    assert (cache.stats().entries, cache.stats().bytes) == (0, 0)


def test_forgetting_a_speaker_leaves_others_alone():
    """Also the same name in another scope."""
    cache = ArtifactCache()
    cache.add(key("alice", 1), artifact("a1"), asked_at=0.0)
    cache.add(key("alice", 2), artifact("a2"), asked_at=0.0)
    cache.add(key("alicea", 1), artifact("b"), asked_at=0.0)
    cache.add(key("alice", 1, scope="other"), artifact("c"), asked_at=0.0)
    cache.forget_speaker("s", "alice")
    assert cache.held(key("alice", 1)) is cache.held(key("alice", 2)) is None
    assert cache.held(key("alicea", 1))
    assert cache.held(key("alice", 1, scope="other"))


def test_clearing_leaves_nothing():
    """The counters of hits and misses go on."""
    cache = ArtifactCache()
    filled(cache, *"ab")
    cache.clear()
    stats = cache.stats()
    assert (stats.entries, stats.bytes, stats.misses) == (0, 0, 2)
    assert held(cache, "ab") == ""


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "confirm", "fresh", "forget"]),
        st.sampled_from("abcdef"),
        st.integers(0, 4000),
    ),
    max_size=40,
)


@given(OPERATIONS, st.integers(0, 30_000), st.integers(0, 4))
def test_bounds_and_book_keeping_hold_whatever_is_done(operations, max_bytes, max_entries):
    """A byte too many that is counted wrongly becomes a leak after a month."""
    cache = ArtifactCache(max_bytes=max_bytes, max_entries=max_entries)
    for number, (operation, name, size) in enumerate(operations):
        made = artifact(f"{name}{size}", size)
        match operation:
            case "add":
                cache.add(key(name), made, asked_at=number)
            case "confirm":
                cache.confirm(key(name), made, asked_at=number)
            case "fresh":
                cache.fresh(key(name), 1e9)
            case "forget":
                cache.forget(key(name))
        stats = cache.stats()
        assert stats.bytes <= max_bytes
        assert stats.entries <= max_entries
        assert stats.bytes == sum(a.size + ENTRY_OVERHEAD_BYTES for a in cache._artifacts.values())


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_may_share_it(threads: int):
    """Engines fetch from several threads; the books must balance afterwards."""
    cache = ArtifactCache(max_bytes=5 * (1000 + ENTRY_OVERHEAD_BYTES), max_entries=4)
    start = threading.Barrier(threads)

    def work(seed: int) -> None:
        start.wait()
        for turn in range(400):
            name = "abcdefgh"[(seed + turn) % 8]
            filled(cache, name)
            cache.fresh(key(name), 1e9)
            if turn % 7 == 0:
                cache.forget_speaker("s", name)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    stats = cache.stats()
    assert stats.misses == 400 * threads
    assert stats.entries == len(cache._artifacts) <= 4
    assert stats.bytes == stats.entries * (1000 + ENTRY_OVERHEAD_BYTES)
