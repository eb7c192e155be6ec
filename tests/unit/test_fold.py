"""Tests of what facts mean in whatever order they are read: the fold, the keys they lie under, and which
objects of a bucket can no longer be reached.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.registry_api.maintenance.garbage import unreachable
from services.shared.bucket.facts import read_certain, read_facts, read_speaker
from services.shared.bucket.keys import SpeakerId, parse_key
from services.shared.bucket.store import Listing, StoredObject, check_prefix
from services.shared.index.reading import IndexedSpeaker, PendingExtraction
from services.shared.model.domain import (
    AliasFact,
    ArtifactFact,
    CensusFact,
    DamagedFact,
    Fact,
    FailureFact,
    Speaker,
    TombstoneFact,
    UnreadableFact,
    VersionFact,
    VersionRecord,
    VoidFact,
    fold,
    given_key,
)
from services.shared.registry.status import profile_status
from speaker_registry.engine import Profile, PublishedWeights
from speaker_registry.errors import AliasNotFound, InvalidVoiceName, VersionNotFound
from speaker_registry.names import parse_speaker_name, slug_of
from tests import speaker_facts
from tests.simulation.store import PerfectStore
from tests.speaker_facts import (
    ECAPA,
    NEW,
    NOON,
    OLD,
    deleted,
    gave_up,
    histories,
    lost,
    made,
    moved,
    version,
    vuid,
)

ALICE = SpeakerId("default", "alice")


def seqs(versions: Iterable[object]) -> list[int]:
    return [one.seq for one in versions]


# -- versions and tombstones


@given(st.data())
def test_any_order_and_any_repetition_of_facts_tell_the_same(data: st.DataObject):
    """A listing has its own order, and lost replies are answered by saying it again."""
    facts = data.draw(histories())
    again = data.draw(st.lists(st.sampled_from(facts))) if facts else []
    assert fold(data.draw(st.permutations([*facts, *again]))) == fold(facts)


@given(histories(), st.integers(0, 10))
def test_a_tombstone_covers_exactly_what_has_its_seq_or_less(facts: list[Fact], seq: int):
    """A later version belongs to a new voice."""
    alive = [fact for fact in facts if not isinstance(fact, TombstoneFact)]
    later = [fact for fact in alive if getattr(fact, "seq", 99) > seq]
    speaker = fold([*alive, deleted(seq)])
    assert speaker.versions == fold(later).versions
    assert speaker.alias_facts == fold(later).alias_facts
    assert all(one.seq > seq for one in (*speaker.versions, *speaker.alias_facts.values()))


def test_a_version_with_the_seq_of_a_tombstone_is_dead():
    """A place given out twice after a loss of Redis: in doubt, what was deleted stays deleted."""
    assert not fold([version(3), deleted(3)]).live


def test_a_late_tombstone_kills_only_what_it_covers():
    """The voice was registered again before the delete landed."""
    assert seqs(fold([version(1), version(3), deleted(2)]).versions) == [3]


def test_a_late_version_behind_a_tombstone_is_dead_on_arrival():
    """A delete that was acknowledged stays."""
    assert not fold([deleted(2), version(1)]).live


def test_marks_survive_the_deletion_and_the_sweep_after_it():
    """A number is never used again, and `created_at` tells two voices of one name apart."""
    speaker = fold([deleted(7, number=4, created_at=1_700_000_009)])
    assert (speaker.seq, speaker.number, speaker.created_at) == (7, 4, 1_700_000_009)
    assert not speaker.live


def test_marks_are_the_highest_of_all_facts_dead_ones_too():
    """Each of the three by itself: after a loss of Redis they need not agree."""
    facts = [version(5, number=2, created_at=30), version(1, number=8, created_at=20), deleted(1, 3, 40)]
    speaker = fold(facts)
    assert (speaker.seq, speaker.number, speaker.created_at) == (5, 8, 40)
    assert fold([*facts, moved(6, 5)]).seq == 6


def test_of_two_versions_with_one_number_the_earlier_place_keeps_it():
    """Possible only after a loss of Redis. The other stays reachable by its alias and as `latest`."""
    speaker = fold([version(3, 2, number=1), version(2, 3, number=1), version(3, 1, number=1)])
    assert [one.vuid for one in speaker.versions] == [vuid(3), vuid(1), vuid(2)]
    assert speaker.resolve(1).vuid == vuid(3)


def test_versions_are_in_the_order_of_their_numbers():
    """People see the numbers. Places follow them except where one was reserved long before it was used."""
    assert seqs(fold([version(2, number=1), version(1, number=2)]).versions) == [2, 1]


# -- aliases


def test_default_is_the_oldest_version_until_it_is_moved():
    """A first upload is served as soon as it is ready, a second one never before."""
    assert fold([version(2), version(1)]).default.seq == 1


def test_default_follows_promotions_and_moves_by_hand():
    assert fold([version(1), version(2), moved(3, 2, automatic=True)]).default.seq == 2
    assert (
        fold([version(1), version(2), version(4), moved(3, 2, automatic=True), moved(5, 4)]).default.seq == 4
    )


def test_of_promotions_the_one_to_the_youngest_version_counts():
    """Somebody found version 2 to be the newest complete one, and was slow to say so."""
    facts = [version(1), version(2), version(3), moved(4, 3, automatic=True)]
    assert fold([*facts, moved(5, 2, automatic=True)]).default.seq == 3


def test_a_promotion_does_not_undo_a_move_by_hand():
    """Somebody went back to version 1 while version 2 was being extracted: there they stay."""
    facts = [version(1), version(2), moved(3, 1)]
    assert fold([*facts, moved(4, 2, automatic=True)]).default.seq == 1


def test_a_promotion_to_a_version_registered_after_the_move_by_hand_counts():
    """They chose among what there was."""
    facts = [version(1), version(2), moved(3, 1), version(4)]
    assert fold([*facts, moved(5, 4, automatic=True)]).default.seq == 4


def test_the_last_move_counts_and_of_two_at_one_place_the_larger_id():
    """Two at one place exist only after a loss of Redis."""
    facts = [version(1), version(2), version(3)]
    assert fold([*facts, moved(5, 2, "prod"), moved(4, 1, "prod")]).aliases["prod"].seq == 2
    tied = [moved(5, 2, "prod", uid="b"), moved(5, 3, "prod", uid="a")]
    assert fold([*facts, *tied]).aliases["prod"].seq == 2


def test_an_alias_of_a_dead_version_is_none():
    """Better no answer than another voice than was asked for."""
    speaker = fold([version(1), deleted(1), version(2), moved(3, 1, "prod"), moved(4, 1)])
    assert speaker.aliases == {}
    assert speaker.default.seq == 2
    with pytest.raises(AliasNotFound, match=r"no alias 'prod'\. It has: default, latest\."):
        speaker.resolve("prod")


def test_a_move_by_hand_ends_promotions_from_before_also_when_its_target_is_dead():
    """The version that was chosen by hand is gone, and the one that it replaced does not come back."""
    facts = [version(2), version(3), moved(4, 3, automatic=True), moved(5, 9)]
    assert fold(facts).default.seq == 2


def test_latest_is_the_newest_complete_version_else_the_newest():
    """A client that asks for `latest` while its extraction runs gets an older version, if there is one to
    serve.
    """
    speaker = fold([version(1), version(2), version(3)])
    assert speaker.resolve("latest", frozenset({vuid(1), vuid(2)})).seq == 2
    assert speaker.resolve("latest").seq == 3


def test_no_other_version_stands_in_for_a_number():
    with pytest.raises(VersionNotFound, match=r"no version 2\. The newest is 3\."):
        fold([version(1), version(3)]).resolve(2)


# -- artifacts and failures


def first(speaker: object) -> object:
    return speaker.versions[0]


@pytest.mark.parametrize("turn", [1, -1])
def test_the_artifact_that_landed_first_counts(turn: int):
    """Its bytes may have been served already."""
    facts = [version(1), made(1, "a", second=1), made(1, "b", second=0)]
    assert first(fold(facts[::turn])).artifact(ECAPA, NEW).attempt == "b"


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_that_landed_in_one_second_the_newer_attempt_counts(turn: int):
    """Buckets date objects to the second; publishers wait until it is over, and must then agree."""
    facts = [version(1), made(1, "a"), made(1, "b")]
    assert first(fold(facts[::turn])).artifact(ECAPA, NEW).attempt == "b"


def test_the_highest_build_is_served():
    """A forced rebuild replaces what was there; landing first decides only among equals."""
    facts = [version(1), made(1, "b", build=1), made(1, "a", build=2, second=5)]
    assert first(fold(facts)).artifact(ECAPA, NEW).build == 2


def test_an_artifact_of_another_fingerprint_is_served_only_to_who_takes_any():
    speaker = fold([version(1), made(1, "a", fingerprint=OLD)])
    assert first(speaker).artifact(ECAPA, NEW) is None
    assert first(speaker).artifact(ECAPA).fingerprint == OLD
    assert first(speaker).artifact("another profile") is None


def test_a_given_artifact_is_never_stale():
    """No encoder made it."""
    assert first(fold([version(1, given=True)])).artifact(ECAPA, NEW).fingerprint == "given"


def test_an_artifact_of_no_live_version_belongs_to_nobody():
    """A worker can only complete what exists."""
    speaker = fold([version(1), made(1, "a"), deleted(1), version(2), made(3, "b")])
    assert [dict(one.artifacts) for one in speaker.versions] == [{}]


PROFILE = Profile(
    name=ECAPA,
    model_type=ECAPA,
    description=ECAPA,
    tensors={},
    sample_rate=16_000,
    weights=PublishedWeights(repo=ECAPA, licence="none", files={}),
)


def state_of(facts: list[Fact], *pending_extractions: PendingExtraction) -> str:
    """Return the state for the profile at its new fingerprint."""
    speaker = fold(facts)
    return profile_status(
        IndexedSpeaker(speaker, pending_extractions), first(speaker), PROFILE, NEW, (OLD,)
    ).state


def test_a_failure_means_nothing_once_there_is_an_artifact():
    """An attempt that was given up may have been another worker's success: what is there is served."""
    facts = [version(1), gave_up(1, "b")]
    assert state_of(facts) == "failed"
    assert state_of([*facts, made(1, "a")]) == "ready"


def test_a_failure_of_an_older_fingerprint_is_forgotten():
    """A better encoder may take what the last one refused."""
    assert state_of([version(1), gave_up(1, "a", fingerprint=OLD)]) == "pending"


def test_the_last_good_artifact_is_served_until_the_current_encoder_has_made_one():
    """An upgrade must never take a voice away, whatever becomes of its new artifact."""
    pending = PendingExtraction(vuid(1), ECAPA, NEW, "job_1", processing=True)
    old = [version(1), made(1, "a", fingerprint=OLD), made(1, "b", fingerprint="other", build=7)]
    for facts, extractions, state in (
        (old, (), "pending"),
        (old, (pending,), "processing"),
        ([*old, gave_up(1, "c")], (), "failed"),
    ):
        speaker = fold(facts)
        indexed = IndexedSpeaker(speaker, extractions)
        status = profile_status(indexed, first(speaker), PROFILE, NEW, (OLD,))
        assert (status.state, status.state_of_current, status.current) == ("ready", state, False)
        assert status.artifact is not None
        assert status.artifact.fingerprint == OLD
    speaker = fold([*old, made(1, "d")])
    status = profile_status(IndexedSpeaker(speaker), first(speaker), PROFILE, NEW, (OLD,))
    assert status.artifact is not None
    assert (status.artifact.fingerprint, status.current) == (NEW, True)


def test_a_failure_is_put_aside_while_it_is_tried_again():
    """A client that waits for a forced extraction must not be told of the former failure."""
    again = PendingExtraction(vuid(1), ECAPA, NEW, "job_1", processing=False)
    assert state_of([version(1), gave_up(1, "a")], again) == "pending"


def test_the_last_attempt_says_why_it_was_given_up():
    facts = [version(1), gave_up(1, "b"), gave_up(1, "a")]
    assert first(fold(facts)).failure(ECAPA, NEW).attempt == "b"
    assert first(fold(facts[::-1])).failure(ECAPA, NEW).attempt == "b"


def test_a_void_artifact_is_none_and_its_build_is_not_used_again():
    """A client that fetched that build before must not be served other bytes under its name."""
    facts = [version(1), made(1, "a", build=1), made(1, "b", build=2), lost(1, build=2)]
    assert first(fold(facts)).artifact(ECAPA, NEW).build == 1
    only = first(fold([version(1), made(1, "a"), made(1, "rival", second=1), lost(1)]))
    assert only.artifact(ECAPA) is None
    assert (only.last_build(ECAPA, NEW), only.last_build(ECAPA, OLD)) == (1, 0)


def test_a_version_whose_only_artifact_is_void_is_extracted_again():
    """Also where an attempt for that build had failed before."""
    facts = [version(1), gave_up(1, "a"), made(1, "b"), lost(1)]
    assert state_of(facts) == "pending"
    assert state_of([*facts, gave_up(1, "c", build=2)]) == "failed"
    assert state_of([*facts, made(1, "c", build=2)]) == "ready"


def test_of_several_artifacts_none_counts_while_one_of_them_cannot_be_read():
    """It may have landed first: what is put in force now would have to change when it can be read again."""
    first, second = made(1, "a"), made(1, "b", second=5)
    assert fold([version(1), first, second]).versions[0].artifacts == {first.akey: first.record}
    speaker = fold([version(1), UnreadableFact(first.vuid, akey=first.akey), second])
    assert speaker.versions[0].artifacts == {}
    assert speaker.unreadable


# -- a census, after a loss of Redis


def test_of_two_versions_with_one_number_the_census_says_which_counts():
    """The first was reserved before Redis was lost, and landed when its number had been given out again."""
    late, acknowledged = version(2, number=2), version(12, number=2)
    counted = CensusFact(10, frozenset({vuid(1)}))
    speaker = fold([version(1), counted, late, acknowledged])
    assert [one.vuid for one in speaker.versions] == [vuid(1), vuid(12)]
    assert speaker.resolve(2).vuid == vuid(12)


def test_a_later_census_decides_for_all_before_it():
    """One that an earlier loss left behind may land after it."""
    stale, last = CensusFact(10, frozenset({vuid(1)})), CensusFact(20, frozenset({vuid(1), vuid(2)}))
    assert [one.vuid for one in fold([version(1), version(2), last, stale]).versions] == [vuid(1), vuid(2)]


def test_a_census_that_cannot_be_read_damages_its_voice_until_a_later_one():
    """Nobody can tell which of its versions count."""
    unreadable = DamagedFact(10, "", 0, 0)
    assert fold([version(1), unreadable]).damaged == 10
    assert fold([version(1), unreadable, CensusFact(20, frozenset({vuid(1)}))]).live


# -- in the bucket


def key_of(fact: Fact, uid: str = "a" * 32) -> str:
    match fact:
        case VersionFact(seq, record):
            return ALICE.version_key(seq, record)
        case AliasFact():
            return ALICE.alias_key(fact)
        case TombstoneFact():
            return ALICE.tombstone_key(fact, uid)
        case ArtifactFact(of, akey, _, record):
            return ALICE.artifact_fact_key(of, akey, record)
        case FailureFact(of, akey, record):
            return ALICE.failure_key(of, akey, record)
        case VoidFact():
            return ALICE.void_key(fact, uid)
        case CensusFact(seq, _):
            return ALICE.census_key(seq, body_of(fact))


def body_of(fact: Fact) -> bytes:
    if isinstance(fact, CensusFact):
        return json.dumps(sorted(fact.vuids)).encode()
    return fact.record.to_json().encode() if hasattr(fact, "record") else b"{}"


def read(bodies: dict[str, bytes], landed: dict[str, datetime] | None = None) -> list[Fact]:
    """The facts in a bucket that holds these objects; None: it vanished after the listing."""

    def get(key: str) -> bytes:
        if bodies[key] is None:
            raise FileNotFoundError
        return bodies[key]

    objects = (StoredObject(key, 1, (landed or {}).get(key, NOON)) for key in bodies)
    store = SimpleNamespace(get=get, list=lambda prefix: Listing((), NOON))
    return list(read_facts(store, Listing(tuple(objects), NOON)))


@given(histories())
def test_what_is_written_of_a_fact_is_what_is_read(facts: list[Fact]):
    """Keys hold part of it, the body the rest, the store's clock when it landed."""
    landed = {key_of(fact): getattr(fact, "landed_at", NOON) for fact in facts}
    found = read({key_of(fact): body_of(fact) for fact in facts}, landed)
    assert {key_of(fact): fact for fact in found} == {key_of(fact): fact for fact in facts}


def test_blobs_are_no_facts():
    keys = [
        ALICE.blob_key(vuid(1), "a" * 64),
        ALICE.artifact_blob_key(vuid(1), "b-1", speaker_facts.artifact("a")),
    ]
    assert read(dict.fromkeys(keys, b"")) == []


def test_a_key_that_a_newer_writer_added_is_ignored():
    """Workers and API are updated one after the other."""
    fact = version(1)
    body = json.dumps({**json.loads(body_of(fact)), "added_in": "a later release"}).encode()
    key = key_of(fact).rpartition(".")[0] + "." + hashlib.sha256(body).hexdigest()
    assert read({key: body}) == [fact]


def test_a_kind_of_fact_that_a_newer_writer_added_is_ignored():
    assert read({f"{ALICE.prefix}r/000000000002.new.x.y": b"?"}) == []


def test_a_fact_that_vanished_after_the_listing_was_swept():
    """Somebody else's garbage collection runs at the same time."""
    assert read({key_of(version(1)): None, key_of(version(2)): body_of(version(2))}) == [version(2)]


DAMAGE = [b"", b"{", b"{}", b"\xff"]


@pytest.mark.parametrize("body", [*DAMAGE, body_of(version(1)).replace(b"Alice", b"Malice")])
def test_a_damaged_version_keeps_its_place(body: bytes):
    """Taken for nothing, its number would be given out again, and its clip collected as garbage."""
    fact = version(1, number=7, created_at=1_800_000_000)
    assert read({key_of(fact): body}) == [DamagedFact(1, vuid(1), 7, 1_800_000_000)]


@pytest.mark.parametrize("body", DAMAGE)
@pytest.mark.parametrize("fact", [made(1, "a"), gave_up(1, "a")], ids=lambda fact: type(fact).__name__)
def test_a_damaged_artifact_or_failure_is_none(fact: Fact, body: bytes):
    """The artifact is made anew."""
    assert read({key_of(version(1)): body_of(version(1)), key_of(fact): body}) == [version(1)]


@pytest.mark.parametrize(
    "name", ["notes.txt", "x.ver.y", "000000000002.ver.few.parts", "000000000002.del.x.y.z", ".DS_Store"]
)
def test_what_is_none_of_ours_is_no_fact(name: str):
    assert read({f"{ALICE.prefix}r/{name}": b"{}", key_of(version(1)): body_of(version(1))}) == [version(1)]


TOP_SEQ, TOP_NUMBER, TOP_DATE = "9" * 12, "9" * 9, "9" * 10


@pytest.mark.parametrize(
    "key",
    [
        "default/v/alice/r/{}.ver." + f"{vuid(1)}.{{}}.{{}}.{'a' * 64}",
        "default/v/alice/r/{}.del.{}.{}." + "b" * 32,
    ],
)
def test_a_place_number_or_date_beyond_the_last_is_none_of_ours(key: str):
    """The next one would have a digit more, and be lost. These numbers are not assigned before the
    year 2286.
    """
    assert parse_key(key.format(TOP_SEQ, TOP_NUMBER, TOP_DATE)) is not None
    for beyond in (
        ("1" + "0" * 12, "1", "1"),
        ("9" * 15, "1", "1"),
        ("0" + TOP_SEQ, "1", "1"),
        (TOP_SEQ, "1" + "0" * 9, "1"),
        (TOP_SEQ, "1", "253402300799"),
    ):
        assert parse_key(key.format(*beyond)) is None


@pytest.mark.parametrize(
    "key",
    [
        f"default/v/alice/r/{'9' * 13}.als.default.{vuid(1)}.{'a' * 32}",
        f"default/v/alice/r/{TOP_SEQ}.als.default.{vuid(1)}.auto-{'9' * 13}-{'a' * 32}",
        f"default/v/alice/r/{'9' * 13}.cen.{'a' * 64}",
        f"_profiles/ecapa/{'9' * 13}.{'a' * 32}.json",
        f"_profiles/ecapa/{TOP_SEQ}.zzz.json",
    ],
)
def test_more_digits_than_we_write_are_none_of_ours(key: str):
    assert parse_key(key) is None


@pytest.mark.parametrize("key", [key_of(fact) for fact in (version(1), moved(2, 1), deleted(3))])
def test_digits_of_other_scripts_are_none_of_ours(key: str):
    """Python takes them for numbers, and no store for a part of a key."""
    assert parse_key(key.replace("0000", "\u0660" * 4, 1)) is None


@pytest.mark.parametrize("akey", ["foo", "b-1 (copy)", "b-0", "b-10000", "b-", "b-x"])
def test_an_artifact_that_names_no_build_is_none_of_ours(akey: str):
    """Somebody copied its folder. Asked for the build of that, everybody's rebuild once came to an end."""
    for name in ("x.void", "x.failed", f"x.{'a' * 64}.json"):
        assert parse_key(f"default/v/alice/d/{vuid(1)}/art/{akey}/{name}") is None
    assert parse_key(f"default/v/alice/d/{vuid(1)}/art/given-qwen3-tts-0.6b-1/x.void") is not None


@given(
    st.one_of(st.text(), st.from_regex(r"(default|_\w+)/(v|\w+)/[a-z.]+(/[rd0-9a-z.]+){1,4}", fullmatch=True))
)
def test_any_text_may_be_a_key(text: str):
    """A writer of the bucket can put an object of any name there."""
    parse_key(text)


@pytest.mark.parametrize(
    "key", [key_of(fact) for fact in (version(1), moved(2, 1), deleted(3), made(1, "a"))]
)
@pytest.mark.parametrize("change", ["~", ".orig", " (copy)", "/x"])
def test_a_copy_beside_an_object_is_none_of_ours(key: str, change: str):
    assert parse_key(key) is not None
    assert parse_key(key + change) is None


@pytest.mark.parametrize("key", ["default/v/Alice/r/{}", "default/v/a..b/r/{}", "Default/v/alice/r/{}", "{}"])
def test_a_folder_that_is_no_speaker_holds_nothing_of_ours(key: str):
    assert parse_key(key.format("000000000002.del.1.1.x")) is None


def test_a_record_in_the_folder_of_another_speaker_is_damaged():
    """Somebody copied a folder by hand. The copy must not be listed under the name of the original."""
    fact = version(1)
    key = key_of(fact).replace("/alice/", "/alicia/")
    assert isinstance(*read({key: body_of(fact)}), DamagedFact)


def test_a_record_under_the_name_of_another_is_damaged():
    """Somebody restored a backup under the wrong name."""
    one, other = made(1, "a"), made(1, "b")
    assert read({key_of(other): body_of(one)}) == []
    first, second = version(1), version(2)
    key = SpeakerId("default", "alice").version_key(2, first.record).replace(vuid(1), vuid(2))
    assert read({key: body_of(first), key_of(second): body_of(second)}) == [
        DamagedFact(2, vuid(2), 1, first.record.created_at),
        second,
    ]


def test_an_artifact_of_another_build_than_its_key_says_is_damaged():
    """The index counts builds one by one: a record of build 1e9 would keep everybody waiting."""
    one = made(1, "a")
    assert read({key_of(one): body_of(made(1, "a", build=999_999_999))}) == []
    assert read({key_of(one): body_of(one)}) == [one]


def test_a_failure_of_another_attempt_than_its_key_says_is_damaged():
    """The index tells attempt and record apart by a colon."""
    one = gave_up(1, "a")
    assert read({key_of(one): body_of(gave_up(1, "a:b"))}) == []


@pytest.mark.parametrize(
    "change", [('"size":10', '"size":1' + "0" * 400), ('"seconds":1.5', '"seconds":NaN')], ids=["size", "NaN"]
)
def test_a_version_with_a_number_that_nobody_can_add_is_damaged(change: tuple[str, str]):
    """The index could neither count it nor hand it out again, and failed for everybody."""
    fact = version(1)
    body = body_of(fact).replace(*(part.encode() for part in change))
    assert body != body_of(fact)
    key = key_of(fact).rpartition(".")[0] + "." + hashlib.sha256(body).hexdigest()
    assert [type(one) for one in read({key: body})] == [DamagedFact]


def test_a_record_that_is_too_big_to_be_one_is_not_read():
    """It would take the memory of whoever looks at the voice."""

    def get(key: str) -> bytes:
        raise AssertionError

    fact = version(1)
    listing = Listing((StoredObject(key_of(fact), 5 * 10**9, NOON),), NOON)
    store = SimpleNamespace(get=get, list=lambda prefix: listing)
    assert [type(one) for one in read_facts(store, listing)] == [DamagedFact]


def test_a_census_that_is_not_handed_out_leaves_nothing_to_guess():
    """Without the census it is unknown which of the versions count."""
    store = Denying(1000)
    census = CensusFact(10, frozenset({vuid(1)}))
    store.put(key_of(census), body_of(census))
    (unreadable,) = read_facts(store, store.list(ALICE.prefix))
    speaker = fold([version(1), unreadable])
    assert (speaker.live, speaker.unreadable) == (False, ("census-10",))


class Denying(PerfectStore):
    """Lists everything, and says so many times that an object is missing."""

    def __init__(self, denials: int) -> None:
        super().__init__(lambda: 0.0)
        self.denials = denials

    def get(self, key: str) -> bytes:
        self.denials -= 1
        if self.denials >= 0:
            raise FileNotFoundError
        return super().get(key)


@pytest.mark.parametrize("fact", [version(1), made(1, "a")], ids=lambda fact: type(fact).__name__)
def test_what_is_listed_and_said_to_be_missing_is_asked_for_again(fact: Fact):
    """S3 answers NoSuchKey once in a while, also for what is there."""
    store = Denying(1)
    store.put(key_of(fact), body_of(fact))
    assert [type(one) for one in read_facts(store, store.list(ALICE.prefix))] == [type(fact)]


class Garbling(PerfectStore):
    """Hands out half of an object so many times, and says nothing of it."""

    def __init__(self, times: int) -> None:
        super().__init__(lambda: 0.0)
        self.times = times

    def get(self, key: str) -> bytes:
        body = super().get(key)
        self.times -= 1
        return body[: len(body) // 2] if self.times >= 0 else body


@pytest.mark.parametrize(
    "fact",
    [version(1), made(1, "a"), gave_up(1, "b"), CensusFact(10, frozenset({vuid(1)}))],
    ids=lambda fact: type(fact).__name__,
)
def test_what_makes_no_sense_is_read_again_before_it_counts_as_damaged(fact: Fact):
    """A damaged record makes the whole voice unusable: its owner is told to restore or to delete it."""
    store = Garbling(1)
    store.put(key_of(fact), body_of(fact))
    assert [type(one) for one in read_facts(store, store.list(ALICE.prefix))] == [type(fact)]


def test_what_is_listed_and_never_handed_out_is_unreadable():
    """It is there, and nobody knows what it says: no other may take its place."""
    store = Denying(99)
    for fact in (version(2, number=3), made(2, "a"), gave_up(2, "b")):
        store.put(key_of(fact), body_of(fact))
    assert list(read_facts(store, store.list(ALICE.prefix))) == [
        UnreadableFact(vuid(2), akey=speaker_facts.akey(2)),
        UnreadableFact(vuid(2), seq=2, number=3, created_at=version(2).record.created_at),
    ]


def test_an_unreadable_version_leaves_nothing_to_guess():
    unreadable = UnreadableFact(vuid(3), seq=3, number=9, created_at=1_800_000_000)
    speaker = fold([version(1), unreadable])
    assert (speaker.unreadable, speaker.live, speaker.number, speaker.seq) == ((vuid(3),), False, 9, 3)
    assert fold([version(1), unreadable, deleted(4)]).unreadable == ()


def test_an_unreadable_artifact_is_not_made_anew():
    """Its bytes were served. Whatever took its place would serve others under the same name."""
    unreadable = UnreadableFact(vuid(1), akey="b-1")
    assert not fold([version(1), unreadable]).live
    assert fold([version(2), unreadable]).live, "it is of no version"


def test_a_damaged_version_leaves_nothing_to_guess():
    """It is unknown which of the other versions the voice's name would stand for."""
    damaged = DamagedFact(3, vuid(3), 9, 1_800_000_000)
    speaker = fold([version(1), version(2), damaged])
    assert (speaker.damaged, speaker.live, speaker.number) == (3, False, 9)
    assert (speaker.seq, speaker.created_at) == (3, 1_800_000_000)


def test_a_damaged_version_can_be_deleted():
    speaker = fold([version(1), DamagedFact(3, vuid(3), 9, 1_800_000_000), deleted(4), version(5, number=10)])
    assert (speaker.damaged, speaker.live, speaker.default.number) == (0, True, 10)


def test_records_ignore_what_they_do_not_know_and_insist_on_what_they_need():
    record = version(1).record
    assert VersionRecord.model_validate_json(record.to_json()) == record
    with pytest.raises(ValidationError, match="vuid"):
        VersionRecord.model_validate_json('{"number": 1}')


@given(st.text(min_size=1, max_size=140))
def test_every_name_has_a_slug_that_any_store_takes(text: str):
    """Names are typed by people, keys go to file systems and S3 servers."""
    try:
        name = parse_speaker_name(text)
    except InvalidVoiceName:
        assume(False)
    speaker_id = SpeakerId.of("default", name)
    check_prefix(speaker_id.prefix)
    assert ":" not in speaker_id.slug
    assert SpeakerId.parse(str(speaker_id)) == speaker_id


@given(st.lists(st.text("aAx-.0_ é", min_size=1, max_size=6), min_size=2, max_size=2, unique=True))
def test_two_names_never_share_a_slug(keys: list[str]):
    """One voice would otherwise be another's version."""
    assert slug_of(keys[0]) != slug_of(keys[1])


@pytest.mark.parametrize("key", ["a.", "a..b", "-a", "A", "a" * 65])
def test_a_key_that_some_store_would_change_is_hashed(key: str):
    """Windows drops a dot at the end, proxies resolve two."""
    assert slug_of(key).startswith("x-")


def test_nobody_can_choose_a_name_that_is_the_slug_of_another():
    hashed = slug_of("ä")
    assert hashed.startswith("x-")
    assert slug_of(hashed) != hashed


@pytest.mark.parametrize("namespace", ["", "A", "a/b", "-a", "a" * 33, "_registry"])
def test_a_namespace_cannot_leave_its_place(namespace: str):
    with pytest.raises(ValueError, match="namespace"):
        SpeakerId(namespace, "alice")


# -- garbage

GRACE = timedelta(hours=24)
DELETED_GRACE = timedelta(hours=2)


def garbage(
    facts: list[Fact],
    landed: dict[str, datetime],
    taken_at: datetime,
    *,
    indexed: Speaker | None = None,
    deleted_grace: timedelta = DELETED_GRACE,
) -> list[str]:
    listing = Listing(
        tuple(StoredObject(key, 1, landed[key]) for key in sorted(landed, reverse=True)), taken_at
    )
    found = unreachable(listing, facts, indexed or fold(facts), grace=GRACE, deleted_grace=deleted_grace)
    return [*found.presumed, *found.certain]


def blobs(facts: Iterable[Fact]) -> Iterator[tuple[str, Fact]]:
    """Return where the bytes lie that facts name."""
    for fact in facts:
        if isinstance(fact, ArtifactFact):
            yield ALICE.artifact_blob_key(fact.vuid, fact.akey, fact.record), fact
        if isinstance(fact, VersionFact):
            of = fact.record
            for given_one in of.given:
                yield ALICE.artifact_blob_key(of.vuid, given_key(ECAPA), given_one), fact
            if of.clip:
                yield ALICE.blob_key(of.vuid, of.clip.sha256), fact
                yield ALICE.blob_key(of.vuid, of.clip.rendition_sha256), fact


def needed(facts: list[Fact]) -> set[str]:
    """Return the objects without which a live version could not be served, or something deleted would come
    back.
    """
    speaker = fold(facts)
    alive = {one.vuid: one for one in speaker.versions}
    keys = {key_of(fact) for fact in facts if isinstance(fact, VersionFact) and fact.record.vuid in alive}
    keys |= {key_of(fact) for fact in speaker.alias_facts.values()}
    keys |= {
        key_of(fact) for fact in facts if isinstance(fact, TombstoneFact) and fact.seq == speaker.tombstone
    }
    for one in alive.values():
        counting = [ArtifactFact(one.vuid, akey, NOON, record) for akey, record in one.artifacts.items()]
        keys |= {key for key, _ in blobs([VersionFact(one.seq, one.record), *counting])}
        keys |= {key_of(fact) for fact in counting}
    return keys


@st.composite
def buckets(draw: st.DrawFn) -> tuple[list[Fact], dict[str, datetime], datetime]:
    """Facts, what lies in the bucket and since when, and when it was listed."""
    facts, ages = draw(histories()), st.sampled_from([timedelta(hours=hours) for hours in (0, 1, 3, 30)])
    orphans = [version(1, draw(st.integers(5, 6))), made(draw(st.integers(1, 6)), "f" * 32)]
    landed = {key: NOON - draw(ages) for key, _ in blobs([*facts, *orphans])}
    landed |= {key_of(fact): NOON - draw(ages) for fact in facts}
    landed |= {key_of(fact): fact.landed_at for fact in facts if isinstance(fact, ArtifactFact)}
    return facts, landed, NOON + draw(ages)


@given(buckets())
def test_what_a_live_version_needs_is_never_garbage(bucket: tuple[list[Fact], dict[str, datetime], datetime]):
    """The object is kept whatever its age, and whatever else lies around."""
    assert not needed(bucket[0]) & set(garbage(*bucket))


@given(buckets(), st.data())
def test_a_collection_that_dies_half_way_changes_nothing(
    bucket: tuple[list[Fact], dict[str, datetime], datetime], data: st.DataObject
):
    """The speaker stays what it was, and the next collection finds the rest, without a new grace."""
    facts, landed, taken_at = bucket
    keys = garbage(facts, landed, taken_at)
    gone = set(keys[: data.draw(st.integers(0, len(keys)))])
    left = [fact for fact in facts if key_of(fact) not in gone]
    assert fold(left) == fold(facts)
    rest = {key: at for key, at in landed.items() if key not in gone}
    assert set(garbage(left, rest, taken_at)) == set(keys) - gone


@given(buckets())
def test_data_goes_before_the_records_that_name_it(bucket: tuple[list[Fact], dict[str, datetime], datetime]):
    """The other way round, a crash would leave a deleted voice's data for another day: nobody recorded it."""
    keys = garbage(*bucket)
    data, records = ([key for key in keys if key.split("/")[3] == kind] for kind in "dr")
    for record in (key for key in records if ".ver." in key):
        named = record.split(".ver.")[1].split(".")[0]
        assert all(keys.index(key) < keys.index(record) for key in data if f"/d/{named}/" in key)


def all_landed(facts: list[Fact], at: datetime = NOON) -> dict[str, datetime]:
    return {key_of(fact): at for fact in facts} | {key: at for key, _ in blobs(facts)}


def test_of_a_deleted_voice_only_the_tombstone_stays():
    """The tombstone stays for ever, because it carries the marks."""
    facts = [version(1), made(1, "a"), gave_up(1, "b"), moved(2, 1), deleted(3), version(4), deleted(5, 2)]
    facts += [version(5, 8), moved(5, 8)]
    landed = all_landed(facts)
    last = key_of(deleted(5, 2))
    assert set(garbage(facts, landed, NOON + DELETED_GRACE)) == set(landed) - {last}
    assert garbage([deleted(5, 2)], {last: NOON}, NOON + timedelta(days=9999)) == []


def test_what_a_census_leaves_out_goes_once_no_later_one_can_bring_it_back():
    """Its uploader was told to send it again. The census that leaves it out stays."""
    facts = [version(1), version(2), CensusFact(10, frozenset({vuid(1)})), CensusFact(9, frozenset())]
    landed = all_landed(facts)
    assert garbage(facts, landed, NOON + GRACE) == []
    left_out = {key for key, fact in blobs(facts) if fact is facts[1]}
    gone = left_out | {key_of(facts[1]), key_of(facts[3])}
    assert set(garbage(facts, landed, NOON + GRACE + timedelta(seconds=1))) == gone


def test_a_deleted_voice_stays_whole_for_its_grace():
    """An operator may bring the voice back for this time, and engines may still be reading it."""
    facts = [version(1), made(1, "a"), deleted(2)]
    landed = all_landed(facts, NOON - timedelta(days=30)) | {key_of(deleted(2)): NOON}
    assert garbage(facts, landed, NOON + DELETED_GRACE - timedelta(seconds=1)) == []
    assert len(garbage(facts, landed, NOON + DELETED_GRACE)) == len(landed) - 1


def test_the_grace_of_a_deleted_voice_begins_with_the_last_delete_that_landed():
    """Two of one seq exist only after a loss of Redis, as does a version of the same."""
    landed = {key_of(deleted(2), "1" * 32): NOON, key_of(deleted(2), "2" * 32): NOON + timedelta(hours=1)}
    landed |= all_landed([version(2)], NOON + timedelta(hours=9))
    facts = [version(2), deleted(2)]
    assert garbage(facts, landed, NOON + timedelta(hours=1) + DELETED_GRACE - timedelta(seconds=1)) == []
    assert len(garbage(facts, landed, NOON + timedelta(hours=1) + DELETED_GRACE)) == 3


def test_data_without_a_record_is_left_alone_for_its_grace():
    """An upload is on its way: its clip is stored before its record."""
    landed = {key: NOON for key, _ in blobs([version(1)])}
    assert garbage([], landed, NOON + GRACE) == []
    assert set(garbage([], landed, NOON + GRACE + timedelta(seconds=1))) == set(landed)


def test_a_delete_takes_nothing_of_an_upload_on_its_way():
    """A version whose record has not landed is not covered before it has."""
    facts = [version(1), deleted(2)]
    coming = {key: NOON for key, _ in blobs([version(3)])}
    assert not set(coming) & set(garbage(facts, all_landed(facts) | coming, NOON + DELETED_GRACE))


def test_what_lost_a_race_is_left_alone_for_its_grace():
    """Its publisher may be just about to look which one landed first."""
    winner, loser = made(1, "a"), made(1, "b", second=1)
    facts = [version(1), winner, loser]
    lost = {key_of(loser), ALICE.artifact_blob_key(loser.vuid, loser.akey, loser.record)}
    assert garbage(facts, all_landed(facts), NOON + GRACE) == []
    assert set(garbage(facts, all_landed(facts), NOON + GRACE + timedelta(seconds=1))) == lost


def test_what_the_index_serves_is_kept_where_the_facts_name_another():
    """After a listing that left out the winner, the loser was put in force, and has been served since."""
    winner, loser = made(1, "a"), made(1, "b", second=1)
    facts = [version(1), winner, loser]
    served = fold([version(1), loser])
    assert garbage(facts, all_landed(facts), NOON + timedelta(days=30), indexed=served) == []


@pytest.mark.parametrize(
    "name", [".DS_Store", "r/notes.txt", "d/loose.wav", f"d/{vuid(1)}/blob/x.orig", "x y"]
)
def test_what_is_not_ours_goes_with_a_deleted_voice_and_never_else(name: str):
    """A foreign object in the voice's folder may be a copy of the clip, so it goes with the voice."""
    strange = {ALICE.prefix + name: NOON - timedelta(days=30)}
    alive, dead = [version(1)], [version(1), deleted(2)]
    assert garbage(alive, all_landed(alive) | strange, NOON + timedelta(days=30)) == []
    assert not set(strange) & set(garbage(dead, all_landed(dead) | strange, NOON)), "the voice has its grace"
    assert set(strange) <= set(garbage(dead, all_landed(dead) | strange, NOON + DELETED_GRACE))


def test_what_is_not_ours_goes_with_a_deleted_version():
    """The voice was registered again, the folder is of its earlier life."""
    facts = [version(1), deleted(2), version(3)]
    strange = {f"{ALICE.data_prefix(vuid(which))}blob/copy of it.wav": NOON for which in (1, 3)}
    found = garbage(facts, all_landed(facts) | strange, NOON + timedelta(days=30))
    assert set(strange) & set(found) == {f"{ALICE.data_prefix(vuid(1))}blob/copy of it.wav"}


def test_failures_of_a_live_version_are_kept():
    """They keep the extraction from being tried for ever."""
    facts = [version(1), gave_up(1, "a"), made(1, "b")]
    assert garbage(facts, all_landed(facts), NOON + timedelta(days=9999)) == []


def test_what_is_wrong_with_a_record_is_said_without_its_words():
    """It ends up in logs."""
    damaged = (
        version(1)
        .record.model_copy(update={"ref_text": "my secret"})
        .to_json()
        .replace('"number":1', '"number":"x"')
    )
    with pytest.raises(ValueError, match="number") as caught:
        VersionRecord.model_validate_json(damaged)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="JSON") as caught:
        VersionRecord.model_validate_json(damaged[:-5])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("behind", [0.0, 0.9, 1.9])
def test_only_what_depends_on_the_second_waits_for_it(behind: float):
    """The bucket dates objects to the second, by a clock that is up to two seconds behind the one that
    decides. A name may look like anything.
    """
    time = 1000.0
    store, speaker_id = PerfectStore(lambda: time), SpeakerId("default", "my.auto-tune")
    first, second = (
        VersionFact(fact.seq, fact.record.model_copy(update={"name": "my.auto-tune"}))
        for fact in (version(1), version(2))
    )
    promoted = moved(3, 2, automatic=True)
    made_now = made(1, "1" * 32).record
    for fact in (first, second):
        store.put(speaker_id.version_key(fact.seq, fact.record), fact.record.to_json().encode())
    store.put(speaker_id.alias_key(promoted), b"{}")
    fact_key = speaker_id.artifact_fact_key(vuid(1), speaker_facts.akey(1), made_now)
    store.put(fact_key, made_now.to_json().encode())
    time -= behind
    certain = read_certain(store, speaker_id)
    assert certain.undecided
    assert [one.seq for one in certain.versions] == [1, 2]
    assert certain.alias_facts == {}
    assert certain.versions[0].artifacts == {}
    time += 5
    assert not read_certain(store, speaker_id).undecided
    truth = read_speaker(store, speaker_id)
    assert truth.default.seq == 2
    assert truth.versions[0].artifacts
