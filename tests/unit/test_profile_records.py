"""Tests of profiles as documents: announcing, promoting, campaigns, races, lost replies and losses of Redis.

Store and Redis are in memory, and time is the test's own. All else is real.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from services.shared.bucket.layout import profile_key
from services.shared.bucket.store import Object, ObjectUnavailable
from services.shared.model.encoders import MAX_FORMER, Encoder
from services.shared.model.profile_document import (
    MAX_CAMPAIGNS,
    MAX_CANDIDATES,
    CampaignRecord,
    ProfileDocument,
    announced,
    promoted,
    promoted_by_campaign,
    with_campaign,
    with_campaign_state,
    with_promotion_at_the_end,
)
from services.shared.model.records import seal, unseal
from services.shared.model.stored_document import KEPT_CHANGES
from services.shared.registry.announce import announce
from services.shared.registry.profile_records import REMEMBERED_SECONDS, ProfileRecords
from services.shared.registry.profiles import Profiles
from services.shared.view.keys import worker_report_key
from services.shared.view.workers import (
    ALIVE_SECONDS,
    FAILED_SECONDS,
    FailedProof,
    LiveWorker,
    WorkerReport,
)
from speaker_registry.errors import (
    CampaignEnded,
    CampaignNotFound,
    CampaignOpen,
    EncoderCurrent,
    EncoderUnknown,
    EncoderUnserved,
    ProfileUnknown,
    Unavailable,
)
from tests.memory_records import OTHER, PROFILE, A, B, C, Process
from tests.memory_registry import World

PATH = profile_key(PROFILE)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def process(world: World) -> Process:
    return Process.settled(world)


class Interrupted:
    """A store at whose next swap something happens, before or after it is carried out."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.before: list[Callable[[], None]] = []
        self.after: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        if not key.startswith("_view") and self.before:
            self.before.pop()()
        made = self._store.swap(key, data, etag=etag)
        if not key.startswith("_view") and self.after:
            self.after.pop()()
        return str(made)


def lose() -> None:
    raise Unavailable("The reply was lost.")


def encoder(fingerprint: str, *, untrained: bool = False) -> Encoder:
    return Encoder(profile=PROFILE, fingerprint=fingerprint, untrained=untrained)


# -- announcing


def test_the_first_encoder_is_current_and_every_other_one_a_candidate(world: World, process: Process) -> None:
    """One more worker must never take a profile down."""
    assert process.announce(A)
    assert not process.announce(B)
    assert process.announce(A), "a second worker with the current encoder"
    assert not process.announce(B), "a second worker with a candidate"
    assert Process(world).known == (A, [], [B])


def test_trained_weights_replace_untrained_ones_and_never_the_other_way(process: Process) -> None:
    """Nobody wants noise once there is something better, and noise is never taken for a voice."""
    assert process.announce(A, untrained=True)
    assert process.announce(B)
    assert not process.announce(A, untrained=True)
    assert not process.announce(C, untrained=True)
    assert process.known == (B, [A], [C])


def test_of_two_first_workers_at_once_one_is_current_and_the_other_a_candidate(world: World) -> None:
    """Both started on an empty profile, and each believed to be the first."""
    store = Interrupted(world.store)
    one, other = Process(world, store=store), Process(world)
    other.generation.for_reading()
    store.before.append(lambda: other.announce(B) and None)
    assert not one.announce(A)
    assert one.known == other.known == (B, [], [A])


# -- promoting and going back


def test_a_promotion_makes_a_candidate_current_and_another_one_is_the_way_back(
    world: World, process: Process
) -> None:
    """Going back costs one promotion, and the encoder of before is not lost by it."""
    process.announce(A)
    process.announce(B)
    process.promote(B, force=True)
    assert process.known == (B, [A], [])
    process.promote(A, force=True)
    assert Process(world).known == (A, [B], [])


def test_an_encoder_without_a_worker_is_promoted_by_force_only(process: Process) -> None:
    """A profile without a worker gives no new voice an artifact."""
    process.announce(A)
    process.announce(B)
    with pytest.raises(EncoderUnserved, match=r"No live worker has .*, or send force=true"):
        process.promote(B)
    assert process.known == (A, [], [B])
    process.workers.beat("w", {PROFILE: B})
    assert process.promote(B).fingerprint == B


def test_a_promotion_that_makes_no_sense_is_refused_and_changes_nothing(process: Process) -> None:
    """Each refusal says what was wrong, with the value, and whose fingerprint it is."""
    process.announce(A)
    process.announce(C, OTHER)
    before = process.profiles.read(PROFILE)
    with pytest.raises(EncoderCurrent, match=f"{A} is already the current fingerprint of profile 'ecapa'"):
        process.promote(A, force=True)
    with pytest.raises(EncoderUnknown, match=f"No worker has ever announced {B} for profile 'ecapa'. GET"):
        process.promote(B, force=True)
    with pytest.raises(EncoderUnknown, match="it is a fingerprint of profile 'codec'"):
        process.promote(C, force=True)
    with pytest.raises(ProfileUnknown):
        process.promote(B, "nothing", force=True)
    assert process.profiles.read(PROFILE) == before


def test_no_process_answers_as_before_once_a_promotion_is_acknowledged(
    world: World, process: Process
) -> None:
    """An engine that asks after the promotion must not get the artifact of before from another process."""
    process.announce(A)
    process.announce(B)
    other = Process(world)
    assert other.known[0] == A
    process.promote(B, force=True)
    assert other.known[0] == B


def test_two_operators_who_promote_at_once_are_put_in_order(world: World, process: Process) -> None:
    """Neither promotion is lost: the second one follows the first, and can be taken back to it."""
    for fingerprint in (A, B, C):
        process.announce(fingerprint)
    store = Interrupted(world.store)
    one = Process(world, store=store)
    store.before.append(lambda: process.promote(C, force=True) and None)
    one.promote(B, force=True)
    assert process.known == one.known == (B, [C, A], [])


def test_two_operators_who_promote_the_same_encoder_at_once_change_it_once(
    world: World, process: Process
) -> None:
    """The second one is told that it is current already, and the former encoders are listed once."""
    process.announce(A)
    process.announce(B)
    store = Interrupted(world.store)
    one = Process(world, store=store)
    store.before.append(lambda: process.promote(B, force=True) and None)
    with pytest.raises(EncoderCurrent):
        one.promote(B, force=True)
    assert one.known == (B, [A], [])


def test_a_worker_that_announces_while_a_promotion_runs_loses_nothing(world: World, process: Process) -> None:
    """The promotion stands, and the worker's encoder is a candidate."""
    process.announce(A)
    process.announce(B)
    store = Interrupted(world.store)
    worker = Process(world, store=store)
    store.before.append(lambda: process.promote(B, force=True) and None)
    assert not worker.announce(C)
    assert worker.known == (B, [A], [C])


def test_a_promotion_whose_reply_is_lost_is_made_once(world: World, process: Process) -> None:
    """It is recognised by the id of its change, although another promotion came since."""
    for fingerprint in (A, B, C):
        process.announce(fingerprint)
    store = Interrupted(world.store)

    def another_and_lose() -> None:
        process.promote(C, force=True)
        lose()

    store.after.append(another_and_lose)
    Process(world, store=store).promote(B, force=True)
    assert process.known == (C, [B, A], []), "the first promotion does not overtake the second"


def test_a_lost_promotion_that_the_document_can_no_longer_tell_is_not_made_again(
    world: World, process: Process
) -> None:
    """Made again, it would take back what others have promoted since."""
    for fingerprint in (A, B, C):
        process.announce(fingerprint)
    store = Interrupted(world.store)

    def others_and_lose() -> None:
        process.promote(C, force=True)
        for number in range(KEPT_CHANGES):
            process.announce(f"sha256:{number:064x}")
        lose()

    store.after.append(others_and_lose)
    with pytest.raises(Unavailable, match="not known whether the change was made"):
        Process(world, store=store).promote(B, force=True)
    assert process.known[0] == C


def test_without_redis_nothing_is_promoted(world: World, process: Process) -> None:
    """Other processes would go on with the former encoder, so nothing is stored."""
    process.announce(A)
    process.announce(B)
    before = world.store.objects[PATH]
    away = Process(world, weather=refused)
    with pytest.raises(Unavailable):
        away.promote(B, force=True)
    assert world.store.objects[PATH] == before


def refused(_: str, call: Callable[[], Any]) -> Any:
    raise Unavailable("Redis does not answer.")


# -- reading


def test_a_process_asks_redis_once_a_second_and_the_bucket_only_for_what_redis_lacks(
    world: World, process: Process
) -> None:
    """Every status of every voice asks for the fingerprint, so it has to cost nothing."""
    process.announce(A)
    calls: list[str] = []

    def counted(what: str, call: Callable[[], Any]) -> Any:
        calls.append(what)
        return call()

    reader = Process(world, weather=counted)
    reader.profiles.fingerprint(PROFILE)
    calls.clear()
    reads = world.store.read
    world.store.read = lambda key: pytest.fail(f"{key} was read")  # type: ignore[method-assign]
    for _ in range(100):
        assert reader.profiles.fingerprint(PROFILE) == A
    assert calls == []
    world.pass_time(REMEMBERED_SECONDS + 0.1)
    assert reader.profiles.fingerprint(PROFILE) == A
    assert len([one for one in calls if "hmget" in one]) == 1
    world.store.read = reads  # type: ignore[method-assign]


@pytest.mark.parametrize("away", [True, False])
def test_a_loss_of_redis_changes_nothing(world: World, process: Process, away: bool) -> None:
    """The documents are in the bucket, and Redis gets its copies back from there."""
    process.announce(A)
    process.announce(B)
    process.promote(B, force=True)
    world.lose_redis()
    reader = Process(world, weather=refused) if away else Process(world)
    assert reader.known == (B, [A], [])
    if not away:
        assert reader.shared.copies.get(PATH) is not None


def test_a_copy_of_redis_is_never_taken_back(world: World, process: Process) -> None:
    """A process that read the document before a promotion may tell Redis of it after that."""
    process.announce(A)
    process.announce(B)
    outdated = process.shared.read(ProfileDocument, PATH)
    process.promote(B, force=True)
    process.shared.share(PATH, outdated, with_body=True)
    assert Process(world).known[0] == B


def test_a_damaged_document_is_replaced_by_the_copy_when_a_worker_announces(
    world: World, process: Process
) -> None:
    """Redis has the last sound copy, so neither candidates nor former encoders are lost."""
    process.announce(A)
    process.announce(B)
    world.store.put(PATH, b"{")
    assert process.announce(A)
    assert Process(world).known == (A, [], [B])
    document = ProfileDocument.parse(world.store.get(PATH))
    assert document.revision > world.clock.seconds, "nobody may take an older copy for a newer one"


@pytest.mark.parametrize("untrained", [True, False])
def test_a_damaged_document_without_a_copy_is_left_to_trained_weights(world: World, untrained: bool) -> None:
    """It is not known what is served. Noise must not replace it, and without an encoder nobody is served."""
    world.store.put(PATH, b"{")
    process = Process(world)
    assert process.profiles.fingerprint(PROFILE) == ""
    assert process.announce(B, untrained=untrained) is not untrained


def test_the_document_of_another_profile_is_damaged(world: World, process: Process) -> None:
    """A slip of an operator who restores objects must not make the encoder of another profile current."""
    process.announce(A)
    process.announce(B)
    process.announce(C, OTHER)
    world.store.put(PATH, world.store.get(profile_key(OTHER)))
    assert process.announce(A), "the document is replaced by the copy"
    assert Process(world).known == (A, [], [B])
    world.store.put(PATH, world.store.get(profile_key(OTHER)))
    world.lose_redis()
    reader = Process(world)
    assert reader.profiles.fingerprint(PROFILE) == ""
    assert reader.profiles.fingerprint(OTHER) == C


def test_the_document_of_another_profile_is_not_taken_for_an_older_one(
    world: World, process: Process
) -> None:
    """It comes while a change is made, and has a lower revision than the profile's own document."""
    process.announce(A)
    process.announce(B)
    process.announce(C, OTHER)
    store = Interrupted(world.store)
    store.before.append(lambda: world.store.put(PATH, world.store.get(profile_key(OTHER))))
    Process(world, store=store).promote(B, force=True)
    assert Process(world).known == (B, [A], [])


def test_an_older_document_that_was_put_back_is_not_changed(world: World, process: Process) -> None:
    """A decision on it would contradict what every process shows, and Redis would not take the change."""
    process.announce(A)
    older = world.store.get(PATH)
    process.announce(B)
    world.store.put(PATH, older)
    assert process.profiles.put_back([PROFILE, OTHER]) == [PROFILE]
    began = world.clock.seconds
    with pytest.raises(Unavailable, match="older state"):
        process.promote(B, force=True)
    assert 2 <= world.clock.seconds - began < 4, "an outdated node of the store may catch up"
    assert world.store.get(PATH) == older
    world.lose_redis()
    assert Process(world).announce(A)
    assert Process(world).profiles.put_back([PROFILE]) == []


def test_an_outdated_node_of_the_store_is_waited_for(world: World, process: Process) -> None:
    process.announce(A)
    older = world.store.read(PATH)
    process.announce(B)
    answers, read = [older, older], world.store.read
    outdated = SimpleNamespace(
        read=lambda key: answers.pop() if key == PATH and answers else read(key),
        swap=world.store.swap,
        now=world.store.now,
    )
    Process(world, store=outdated).promote(B, force=True)
    assert Process(world).known == (B, [A], [])


NEWER = seal({**unseal(ProfileDocument(revision=1).to_bytes()), "needs": ["quantum"]})


def no_access(_: str) -> Object:
    raise ObjectUnavailable("archived")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", f"The object '{PATH}' in the bucket is damaged. Restore it from a backup."),
        (NEWER, f"The object '{PATH}' in the bucket was written by a newer release: "),
        (None, f"The object '{PATH}' in the bucket cannot be read."),
    ],
    ids=["damaged", "newer", "no access"],
)
def test_who_waits_for_a_profile_is_told_of_its_document_and_not_of_workers(
    world: World, process: Process, body: bytes | None, problem: str
) -> None:
    """An operator would otherwise look for the fault at a worker that is alive."""
    process.announce(A)
    good, read = world.store.get(PATH), world.store.read
    if body is None:
        world.store.read = no_access  # type: ignore[method-assign]
    else:
        world.store.put(PATH, body)
    away = Process(world, weather=refused)
    profiles = Profiles(away.catalogue, away.profiles, NoneServed())
    reason = profiles.waiting_reason(PROFILE) or ""
    assert reason.startswith(f"the current encoder of profile '{PROFILE}' is unknown. {problem}")
    with pytest.raises(Unavailable, match=re.escape(problem)):
        away.promote(B, force=True)
    world.store.read = read  # type: ignore[method-assign]
    world.store.put(PATH, good)
    world.pass_time(11)
    assert profiles.waiting_reason(PROFILE) == f"no worker serves profile '{PROFILE}'"


class NoneServed:
    """No live worker."""

    def holds(self, profile: str, fingerprint: str) -> bool:
        return False


def asked_of(world: World) -> list[str]:
    """Return a list that grows by the key of each object that is asked for from now on."""
    asked: list[str] = []
    read = world.store.read

    def noted(key: str) -> Object:
        asked.append(key)
        return read(key)

    world.store.read = noted  # type: ignore[method-assign]
    return asked


def test_a_damaged_document_is_not_read_for_every_request(world: World, process: Process) -> None:
    """A bad disk block may take half a minute to say that it is one."""
    world.store.put(PATH, b"{")
    asked = asked_of(world)
    for _ in range(5):
        world.pass_time(REMEMBERED_SECONDS + 0.1)
        assert process.profiles.fingerprint(PROFILE) == ""
    assert asked.count(PATH) == 2, "a body that does not verify is looked at a second time"


def test_a_document_of_a_newer_release_is_neither_served_nor_changed(world: World, process: Process) -> None:
    """This release does not know what it would destroy."""
    body = seal({**unseal(ProfileDocument(revision=1).to_bytes()), "needs": ["quantum"]})
    world.store.put(PATH, body)
    with pytest.raises(Unavailable, match="written by a newer release: the document needs quantum"):
        process.announce(A)
    assert world.store.get(PATH) == body


def test_members_of_a_newer_release_are_kept(world: World, process: Process) -> None:
    """An older release rewrites the document during an upgrade, and must not drop what it does not know."""
    process.announce(A)
    members = json.loads(json.dumps(unseal(world.store.get(PATH))))
    members["shade"], members["current"]["hue"] = "blue", 7
    world.store.put(PATH, seal({**members, "revision": 2}))
    process.announce(B)
    kept = unseal(world.store.get(PATH))
    assert (kept["shade"], kept["current"]["hue"], kept["revision"]) == ("blue", 7, 3)


def test_housekeeping_sees_when_every_voice_has_to_be_looked_at(process: Process) -> None:
    """A text tells, so no process that dies can forget to say it."""
    process.announce(A)
    process.announce(B)
    before = process.profiles.made_with([PROFILE])
    assert process.profiles.made_with([PROFILE]) == before
    assert process.profiles.made_with([PROFILE, OTHER]) != before
    process.promote(B, force=True)
    assert process.profiles.made_with([PROFILE]) != before


def test_a_promotion_waits_for_every_process_that_answers_from_memory(world: World, process: Process) -> None:
    """What is kept in memory must go before the operator is told that the promotion is done."""
    waited: list[str] = []
    records = ProfileRecords(process.shared, world.clock, wait=lambda: waited.append("for all"))
    for fingerprint in (A, B):
        announce(records, encoder(fingerprint), worker="w")
    records.change(PROFILE, partial(promoted, fingerprint=B), by="me", did="promote")
    assert waited == []
    records.settle()
    assert waited == ["for all"]


def test_a_profile_without_a_worker_is_not_looked_for_every_second(world: World, process: Process) -> None:
    """Every process asks for every profile of the catalogue, most of which may have no worker."""
    asked = asked_of(world)
    for _ in range(5):
        world.pass_time(REMEMBERED_SECONDS + 0.1)
        assert process.profiles.fingerprint(PROFILE) == ""
    assert asked.count(PATH) == 2, "that a document is missing is looked at a second time"
    Process(world).announce(A)
    world.pass_time(REMEMBERED_SECONDS + 0.1)
    assert process.profiles.fingerprint(PROFILE) == A


# -- limits of the document


def test_a_document_stays_small_however_many_encoders_come() -> None:
    """A crash loop with changing weights must not fill the document."""
    document = announced(ProfileDocument(), encoder("first")).having(revision=1)
    going = CampaignRecord(id="c", profile=PROFILE, fingerprint="0", sample=1)
    for number in range(MAX_CANDIDATES + 20):
        document = announced(document, encoder(str(number)))
        if number == 0:
            document = with_campaign(document, going)
    names = [one.fingerprint for one in document.candidates]
    assert len(names) == MAX_CANDIDATES
    assert {"0", str(MAX_CANDIDATES + 19)} <= {*names}, "a campaign keeps its candidate"
    for name in names:
        document = promoted(document, name)
    assert len(document.former) == MAX_FORMER


def test_the_oldest_campaign_that_is_over_is_forgotten() -> None:
    """Campaigns are listed for people, who do not look at the fiftieth."""
    document = announced(announced(ProfileDocument(), encoder("a")).having(revision=1), encoder("b"))
    for number in range(MAX_CAMPAIGNS + 1):
        new = campaign("b", id=str(number))
        document = with_campaign_state(with_campaign(document, new), new.id, "canceled", now=1)
    assert [one.id for one in document.campaigns] == [str(one) for one in range(1, MAX_CAMPAIGNS + 1)]


def test_artifacts_stay_that_are_served_or_may_be_served_after_the_next_promotion() -> None:
    """Housekeeping removes all others. A campaign's work must be there when its encoder is promoted."""
    document = ProfileDocument()
    assert document.kept_fingerprints == set()
    for fingerprint in "abcd":
        document = announced(document, encoder(fingerprint)).having(revision=1)
    document = with_campaign(promoted(promoted(document, "b"), "a"), campaign("c", id="1"))
    ended = with_campaign_state(document, "1", "complete", now=1)
    assert document.kept_fingerprints == ended.kept_fingerprints == {"a", "b", "c"}
    assert promoted(ended, "c").kept_fingerprints == {"c", "a"}


def test_what_the_newest_campaign_made_stays_also_if_its_encoder_is_a_former_one() -> None:
    """An operator may prepare the way back to the encoder before the last one."""
    document = ProfileDocument()
    for fingerprint in "abc":
        document = announced(document, encoder(fingerprint)).having(revision=1)
    document = promoted(promoted(document, "b"), "c")
    assert document.kept_fingerprints == {"c", "b"}
    document = with_campaign(document, campaign("a", id="1"))
    ended = with_campaign_state(document, "1", "complete", now=1)
    assert document.kept_fingerprints == ended.kept_fingerprints == {"c", "b", "a"}


def test_candidates_that_no_campaign_has_prepared_are_forgotten_first() -> None:
    """Hours of work are lost if the encoder that was to be promoted is forgotten."""
    document = announced(ProfileDocument(), encoder("first")).having(revision=1)
    document = with_campaign(announced(document, encoder("prepared")), campaign("prepared"))
    document = with_campaign_state(document, "c1", "complete", now=1)
    for number in range(MAX_CANDIDATES + 20):
        document = announced(document, encoder(str(number)))
    assert document.encoder("prepared") is not None
    assert len(document.candidates) == MAX_CANDIDATES


# -- campaigns


@pytest.fixture
def candidate(process: Process) -> Process:
    """Return a process of a profile that has a candidate."""
    process.announce(A)
    process.announce(B)
    return process


def campaign(fingerprint: str = B, **said: Any) -> CampaignRecord:
    return CampaignRecord(**{"id": "c1", "profile": PROFILE, "fingerprint": fingerprint, "sample": 3} | said)


def start(process: Process, new: CampaignRecord) -> ProfileDocument:
    return process.profiles.change(PROFILE, partial(with_campaign, campaign=new), by="me", did="start")


def change(process: Process, state: str, **said: Any) -> ProfileDocument:
    decide = partial(with_campaign_state, campaign_id="c1", state=state, now=7, **said)
    return process.profiles.change(PROFILE, decide, by="me", did=state)


def test_a_campaign_is_paused_resumed_and_canceled_and_every_process_sees_it(
    world: World, candidate: Process
) -> None:
    """An operator can stop the extra load at any time, by whichever process."""
    start(candidate, campaign(rate=2.5))
    change(Process(world), "paused")
    assert candidate.profiles.read_uncached(PROFILE).campaigns == (
        campaign(rate=2.5, state="paused", changed_at=7),
    )
    change(candidate, "running")
    ended = change(candidate, "canceled", result={"ready": 1})
    assert ended.campaigns == (campaign(rate=2.5, state="canceled", changed_at=7, result={"ready": 1}),)
    assert ended.open_campaign is None
    with pytest.raises(CampaignEnded, match="Campaign 'c1' is canceled; only one that is running or paused"):
        change(candidate, "running")
    assert change(candidate, "canceled", result={}) == ended, "again"


def test_a_state_that_a_campaign_has_already_changes_nothing(world: World, candidate: Process) -> None:
    """A repeated request must not fill the document with revisions."""
    start(candidate, campaign())
    change(candidate, "paused")
    before = world.store.get(PATH)
    change(candidate, "paused")
    assert world.store.get(PATH) == before


def test_a_profile_has_one_campaign_at_a_time(world: World, candidate: Process) -> None:
    """Two would compete for the same workers, and nobody could tell which one promotes."""
    store = Interrupted(world.store)
    other = Process(world, store=store)
    store.before.append(lambda: start(candidate, campaign()) and None)
    with pytest.raises(CampaignOpen, match=r"Campaign 'c1' of profile 'ecapa' for .* is running"):
        start(other, campaign(id="c2"))
    assert [one.id for one in other.profiles.read_uncached(PROFILE).campaigns] == ["c1"]


def test_a_promotion_at_the_end_joins_the_campaign_of_its_encoder(candidate: Process) -> None:
    """An operator who decides later must not have to start again."""
    candidate.announce(C)
    document = start(candidate, campaign())
    joined = with_promotion_at_the_end(document, campaign(id="c2", force=True, created_at=9))
    assert joined.campaigns == (campaign(promotes=True, force=True, changed_at=9),)
    with pytest.raises(CampaignOpen):
        with_promotion_at_the_end(document, campaign(C, id="c2"))
    ended = with_campaign_state(document, "c1", "canceled", now=8)
    assert with_promotion_at_the_end(ended, campaign(C, id="c2")).open_campaign == campaign(C, id="c2")


def test_a_campaign_promotes_its_encoder_in_the_change_that_ends_it(candidate: Process) -> None:
    """No process may die between the two."""
    document = start(candidate, campaign())
    ended = promoted_by_campaign(document, "c1", now=7, result={"ready": 3})
    assert ended.campaigns == (campaign(state="promoted", changed_at=7, result={"ready": 3}),)
    assert (ended.fingerprint, ended.former_fingerprints, ended.candidates) == (B, (A,), ())


@pytest.mark.parametrize("state", ["paused", "canceled"])
def test_a_campaign_that_an_operator_stops_in_its_last_moment_promotes_nothing(
    world: World, candidate: Process, state: str
) -> None:
    """The runner may come to its end in the same moment, and the operator was told that it stopped."""
    start(candidate, campaign(promotes=True))
    store = Interrupted(world.store)
    runner = Process(world, store=store)
    store.before.append(lambda: change(candidate, state) and None)
    decide = partial(promoted_by_campaign, campaign_id="c1", now=7, result={})
    runner.profiles.change(PROFILE, decide, by="campaign", did="promote")
    document = candidate.profiles.read_uncached(PROFILE)
    assert (document.fingerprint, document.campaigns[0].state) == (A, state)


def test_a_promotion_half_way_leaves_room_for_the_next_campaign(candidate: Process) -> None:
    """A campaign whose encoder is current has nothing left to do, whether or not its runner noticed."""
    start(candidate, campaign())
    candidate.promote(B, force=True)
    assert start(candidate, campaign(A, id="c2")).open_campaign == campaign(A, id="c2")


def test_a_campaign_that_makes_no_sense_is_refused_and_changes_nothing(
    world: World, candidate: Process
) -> None:
    """Each refusal says what was wrong, with the value."""
    before = world.store.get(PATH)
    with pytest.raises(EncoderCurrent, match=A):
        start(candidate, campaign(A))
    with pytest.raises(EncoderUnknown, match=C):
        start(candidate, campaign(C))
    with pytest.raises(CampaignNotFound, match="no campaign 'c1'"):
        change(candidate, "paused")
    assert world.store.get(PATH) == before


# -- workers


def test_a_worker_is_alive_for_twenty_seconds_or_until_it_leaves(world: World, process: Process) -> None:
    """Readiness and promotions ask whether somebody has an encoder."""
    process.workers.beat("w1", {PROFILE: A, OTHER: B})
    process.workers.beat("w2", {PROFILE: A})
    assert Process(world).workers.of([PROFILE, OTHER]) == {PROFILE: {A: 2}, OTHER: {B: 1}}
    process.workers.leave("w2", {PROFILE: A})
    assert process.workers.of([PROFILE]) == {PROFILE: {A: 1}}
    world.pass_time(ALIVE_SECONDS + 1)
    assert not process.workers.have(PROFILE, A)


def test_workers_tell_their_device_their_proofs_and_what_they_made(world: World, process: Process) -> None:
    """Operators look for the worker that is slow, or whose device is not the one they meant."""
    report = WorkerReport(device="cuda:1", proven_at={PROFILE: 7.0}, extracted_last_hour={PROFILE: 12})
    process.workers.beat("w2", {PROFILE: A})
    process.workers.beat("w1", {PROFILE: B, OTHER: C}, report)
    seen = Process(world).workers.live([PROFILE, OTHER])
    assert seen == {
        PROFILE: [LiveWorker("w1", B, report), LiveWorker("w2", A, None)],
        OTHER: [LiveWorker("w1", C, report)],
    }
    world.server.set(worker_report_key(process.generation.for_reading(), "w1"), "{}")
    assert process.workers.live([OTHER]) == {OTHER: [LiveWorker("w1", C, None)]}, "of another release"
    world.pass_time(ALIVE_SECONDS + 1)
    assert process.workers.live([PROFILE]) == {PROFILE: []}


def test_a_failed_proof_is_shown_for_ten_minutes_or_until_it_is_withdrawn(
    world: World, process: Process
) -> None:
    """A worker that fails and ends is started again within five minutes."""
    proof = FailedProof(worker="w1", device="cpu", reason="codes differ")
    process.workers.report_failed({PROFILE: proof})
    world.pass_time(FAILED_SECONDS - 1)
    assert process.workers.failed([PROFILE, OTHER]) == {PROFILE: [proof], OTHER: []}
    process.workers.withdraw_failed({PROFILE: proof})
    assert process.workers.failed([PROFILE]) == {PROFILE: []}
