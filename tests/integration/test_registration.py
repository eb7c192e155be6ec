"""Tests of registering versions on a real Valkey and a real local folder, without HTTP."""

import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError
from services.registry_api.operations.registration import Registered, _Registration
from services.shared.index.refusals import FactsDue
from services.shared.index.speaker_index import (
    LANDING_SECONDS,
    REPEAT_SECONDS,
    Reservation,
)
from services.shared.registry.promotion import held_back

from services.shared.configuration.settings import HousekeepingSettings
from speaker_registry.errors import (
    CacheUnsupported,
    EmbeddingWidthMismatch,
    IdempotencyKeyReused,
    QuotaExceeded,
    RegistrationInProgress,
    Unavailable,
    VoiceExists,
)
from tests.integration.conftest import Open
from tests.integration.storage import (
    NAMESPACE,
    PROFILE,
    WIDER,
    Storage,
    at_once,
    held_before_its_fact,
    lose_redis,
    refuse,
    speaker_id,
)


def test_uploads_of_one_voice_at_the_same_time_lose_none(storage: Storage):
    """Uploads of one voice at the same time lose none. Each gets a version of its own, in one order, with its
    own clip.
    """
    made = at_once(16, lambda one: storage.register("alice", number=one))
    versions = storage.index.load(speaker_id("alice")).speaker.versions
    assert [version.number for version in versions] == list(range(1, 17))
    times = [version.record.created_at for version in versions]
    assert all(before < after for before, after in pairwise(times))
    assert {one.version.vuid for one in made} == {version.vuid for version in versions}
    for one, registered in enumerate(made):
        clip = registered.version.record.clip
        key = speaker_id("alice").blob_key(registered.version.vuid, clip.sha256)
        assert storage.store.get(key) == f"clip {one}".encode()
    storage.finish_all()
    storage.check_settled("alice")


def test_a_repeated_request_is_given_the_version_it_made(storage: Storage):
    """A repeated request gets the version that it made. A client whose answer was lost must be able to send
    it again, whatever came between.
    """
    first = storage.register("alice", idempotency_key="k")
    storage.register("alice", number=2)
    again = storage.register("alice", idempotency_key="k")
    assert (again.version.vuid, again.created) == (first.version.vuid, False)
    assert again.jobs == first.jobs
    assert len(storage.truth("alice").versions) == 2


def test_a_request_keeps_its_place_while_it_is_repeated(storage: Storage):
    """A request keeps its place while it is repeated. The data of its last attempt may land late; with
    another place by then, it would exist twice.
    """

    def attempt() -> str:
        asked = {"vuid": storage.clock.new_id(), "request": "r", "idempotency": "k"}
        place = storage.index.reserve_version(speaker_id("alice"), max_speakers=9, immutable=False, **asked)
        return place.vuid

    first = attempt()
    storage.clock.sleep(REPEAT_SECONDS - 10)
    assert attempt() == first
    storage.clock.sleep(20)  # too late for this place, whose first blobs may soon be swept
    with pytest.raises(Unavailable, match="An earlier attempt of this request may still be stored"):
        attempt()
    storage.clock.sleep(LANDING_SECONDS)
    with pytest.raises(FactsDue):  # what it stored may be there, and the index not know
        attempt()
    storage.index.admit(speaker_id("alice"))
    assert attempt() != first


def test_nothing_is_swept_that_a_repeated_request_may_still_make_use_of():
    with pytest.raises(ValidationError, match="grace_seconds"):
        HousekeepingSettings(grace_seconds=REPEAT_SECONDS + LANDING_SECONDS)


def test_one_request_sent_many_times_at_once_makes_one_version(storage: Storage):
    """One request that is sent many times at once makes one version. Before the first has been stored, only
    its key identifies it.
    """
    made = at_once(8, lambda _: storage.register("alice", idempotency_key="k"))
    assert len({one.version.vuid for one in made}) == 1
    assert len(storage.truth("alice").versions) == 1
    assert len(storage.jobs("alice")) == 1


Meanwhile = Callable[[Callable[[], object]], None]


@pytest.fixture
def before_it_reserves(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Return a function that takes an action to run once, after the next upload has
    looked for its earlier version.
    """
    reserve = storage.index.reserve_version

    def before_the_next(happening: Callable[[], object]) -> None:
        def first(*given: Any, **said: Any) -> Any:
            monkeypatch.setattr(storage.index, "reserve_version", reserve)
            happening()
            return reserve(*given, **said)

        monkeypatch.setattr(storage.index, "reserve_version", first)

    return before_the_next


def test_one_request_sent_twice_makes_one_version_though_redis_is_lost_between(
    storage: Storage, before_it_reserves: Meanwhile
):
    """One request that is sent twice makes one version though Redis is lost in between. The second looked
    before the first was registered, and its place is forgotten with the old server.
    """
    made = []

    def meanwhile() -> None:
        made.append(storage.register("alice", idempotency_key="k"))
        lose_redis(storage)

    before_it_reserves(meanwhile)
    again = storage.register("alice", idempotency_key="k")
    assert (again.version.vuid, again.created) == (made[0].version.vuid, False)
    assert len(storage.truth("alice").versions) == 1


def test_a_key_is_good_for_one_request_though_redis_is_lost_between(
    storage: Storage, before_it_reserves: Meanwhile
):
    """A key is valid for one request although Redis is lost in between. The second request brings another
    clip, so it is no repeat.
    """

    def meanwhile() -> None:
        storage.register("alice", idempotency_key="k")
        lose_redis(storage)

    before_it_reserves(meanwhile)
    with pytest.raises(IdempotencyKeyReused):
        storage.register("alice", number=2, idempotency_key="k")
    assert len(storage.truth("alice").versions) == 1


def test_a_version_that_a_delete_may_take_is_not_made_again_for_its_key(
    storage: Storage, before_it_reserves: Meanwhile
):
    """A repeated request is not answered with a version that a pending delete may remove, but makes a new
    one, because its client wants a version that stays.
    """
    made = []

    def meanwhile() -> None:
        made.append(storage.register("alice", idempotency_key="k"))
        storage.index.reserve_tombstone(speaker_id("alice"))

    before_it_reserves(meanwhile)
    again = storage.register("alice", idempotency_key="k")
    assert again.created
    assert again.version.vuid != made[0].version.vuid


def _died_after_its_fact(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an upload that stores a version and dies before it tells the index. Housekeeping does not
    repair it for an hour.
    """

    def die(*_: object) -> bool:
        raise Unavailable("Killed.")

    with monkeypatch.context() as patched:
        patched.setattr(storage.index, "apply_version", die)
        with pytest.raises(Unavailable):
            storage.register("alice", idempotency_key="k")
    storage.clock.sleep(REPEAT_SECONDS + 2 * LANDING_SECONDS)


def test_a_key_finds_its_version_though_the_index_was_never_told(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    _died_after_its_fact(storage, monkeypatch)
    (version,) = storage.truth("alice").versions
    again = storage.register("alice", idempotency_key="k")
    assert (again.version.vuid, again.created) == (version.vuid, False)
    assert len(storage.truth("alice").versions) == 1


def test_an_immutable_voice_is_not_registered_again_though_the_index_was_never_told(
    redis_client: object, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    storage = opened(registration_policy="immutable")
    _died_after_its_fact(storage, monkeypatch)
    with pytest.raises(VoiceExists):
        storage.register("alice", number=2)
    assert len(storage.truth("alice").versions) == 1


def test_a_voice_is_read_again_only_where_a_place_of_it_is_open(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """A voice is read again only if one of its places is open. Reading a thousand versions before each upload
    would cost more than the upload.
    """
    storage.register("alice", idempotency_key="k")
    storage.clock.sleep(2 * LANDING_SECONDS)
    monkeypatch.setattr(storage.index, "admit", lambda *_: pytest.fail("its facts were read"))
    assert storage.register("alice", number=2, idempotency_key="l").version.number == 2


def test_one_key_for_different_requests_at_once_is_good_for_one_of_them(storage: Storage):
    """One key for different requests at once is valid for one of them. The others must not get its place: two
    clips would share one version.
    """

    def upload(number: int) -> bool:
        try:
            return storage.register("alice", number=number, idempotency_key="k").created
        except IdempotencyKeyReused:
            return False

    assert at_once(8, upload).count(True) == 1
    assert len(storage.truth("alice").versions) == 1
    assert len(storage.objects("alice")) == 3, "its record, its clip, its rendition"


def test_a_key_that_met_a_version_that_was_there_stands_for_it(storage: Storage):
    """A key whose upload matched an existing version stands for that version. A late repeat of an upload that
    had long been answered took the voice back from a newer one.
    """
    first = storage.register("alice").version
    met = storage.register("alice", idempotency_key="k")
    assert (met.version.vuid, met.created) == (first.vuid, False)
    storage.register("alice", number=2)
    again = storage.register("alice", idempotency_key="k")
    assert (again.version.vuid, again.created) == (first.vuid, False)
    with pytest.raises(IdempotencyKeyReused):
        storage.register("alice", number=3, idempotency_key="k")
    other = storage.register("alice", idempotency_key="another")
    assert (other.version.number, other.created) == (3, True)


def test_a_key_that_met_a_version_means_the_same_while_others_register_it_again(storage: Storage):
    first = storage.register("alice").version
    storage.register("alice", idempotency_key="k")
    storage.register("alice", number=2)
    storage.register("alice")  # the first clip, as the newest version
    assert storage.register("alice", idempotency_key="k").version.vuid == first.vuid


def test_a_request_whose_first_attempt_is_on_its_way_is_no_repeat_of_another(storage: Storage):
    """A request whose first attempt is pending is no repeat of another. Both attempts would have been
    answered, with different versions.
    """
    slow = held_before_its_fact(storage, "alice", idempotency_key="k")
    storage.register("alice")  # the same request by another client
    again = storage.register("alice", idempotency_key="k")
    assert slow().version.vuid == again.version.vuid


@pytest.mark.parametrize("changed", [{"number": 2}, {"ref_text": "hello"}, {"description": "d"}])
def test_an_idempotency_key_is_good_for_one_request(storage: Storage, changed: dict[str, Any]):
    storage.register("alice", idempotency_key="k")
    before = storage.objects("alice")
    with pytest.raises(IdempotencyKeyReused):
        storage.register("alice", idempotency_key="k", **changed)
    assert storage.objects("alice") == before


def test_the_same_clip_with_the_same_words_again_is_no_new_version(storage: Storage):
    """The same clip with the same texts makes no new version, because scripts upload the
    same folder every night.
    """
    first = storage.register("alice")
    assert storage.register("alice").version.vuid == first.version.vuid
    assert storage.register("alice", ref_text="hello").version.number == 2
    assert storage.register("alice", ref_text="hello", dedupe=False).version.number == 3
    assert storage.register("alice").version.number == 4, "only the newest version counts"


def test_an_immutable_voice_is_not_overwritten(redis_client: object, opened: Open):
    """An immutable voice is not overwritten, and nothing of the attempt is stored."""
    storage = opened(registration_policy="immutable")
    storage.register("alice")
    before = storage.objects("alice")
    with pytest.raises(VoiceExists, match="delete it first"):
        storage.register("alice", number=2)
    assert storage.objects("alice") == before
    storage.delete("alice")
    assert storage.register("alice", number=2).version.number == 2


def test_of_many_registrations_of_one_immutable_voice_at_once_one_succeeds(
    redis_client: object, opened: Open
):
    """One of many simultaneous registrations of an immutable voice succeeds. The others are told to come
    back, because the first may still fail.
    """
    storage = opened(registration_policy="immutable")

    def attempt(number: int) -> str:
        try:
            return storage.register("alice", number=number).version.vuid
        except (VoiceExists, RegistrationInProgress) as error:
            return error.code

    outcomes = at_once(8, attempt)
    (version,) = storage.truth("alice").versions
    assert outcomes.count(version.vuid) == 1
    assert set(outcomes) <= {version.vuid, "voice_exists", "registration_in_progress"}


def test_an_immutable_voice_is_free_again_when_its_registration_can_no_longer_land(
    redis_client: object, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    storage = opened(registration_policy="immutable")
    with monkeypatch.context() as patched:
        patched.setattr(storage.store, "put", refuse)
        with pytest.raises(Unavailable):
            storage.register("alice")
    with pytest.raises(RegistrationInProgress, match="registered by another request"):
        storage.register("alice", number=2)
    again = storage.register("alice")
    assert again.version.number == 1, "the same request goes on where it was"
    storage.delete("alice")
    assert storage.register("alice", number=3).version.number == 2, "a delete makes room at once"

    with monkeypatch.context() as patched:
        patched.setattr(storage.store, "put", refuse)
        with pytest.raises(Unavailable):
            storage.register("bob")
    storage.clock.ahead += LANDING_SECONDS + 1
    assert storage.register("bob", number=2).version.number == 2


def test_no_more_voices_than_allowed_but_any_number_of_versions(redis_client: object, opened: Open):
    storage = opened(max_uploaded=2)
    storage.register("alice")
    storage.register("bob")
    with pytest.raises(QuotaExceeded, match=r"limit reached \(2\)"):
        storage.register("carol")
    assert storage.objects("carol") == []
    assert storage.register("bob", number=2).version.number == 2
    storage.delete("alice")
    assert storage.register("carol").created


def test_new_voices_that_come_at_once_are_no_more_than_allowed(
    redis_client: object, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """New voices that arrive at once are no more than allowed. Of 16 uploads that came together, 7 were once
    admitted where 5 were allowed, because none had been counted yet.
    """
    storage = opened(max_uploaded=5)
    put_blobs, everybody = _Registration.put_blobs, threading.Barrier(16)

    def put_blobs_together(registration: _Registration, blobs: Mapping[str, bytes]) -> None:
        everybody.wait(60)
        put_blobs(registration, blobs)

    def upload(number: int) -> bool:
        try:
            return storage.register(f"voice-{number}").created
        except QuotaExceeded:
            everybody.wait(60)
            return False

    monkeypatch.setattr(_Registration, "put_blobs", put_blobs_together)
    accepted = at_once(16, upload)
    assert accepted.count(True) == 5
    assert storage.index.usage(NAMESPACE)[0] == 5


def reserve(storage: Storage, name: str, **asked: Any) -> Reservation:
    """Reserve a place for a version that is pending from now on. Two voices are allowed."""
    given = {"vuid": storage.clock.new_id(), "max_speakers": 2, "immutable": False} | asked
    return storage.index.reserve_version(speaker_id(name), **given)


def test_a_new_voice_on_its_way_counts_as_long_as_it_may_land(storage: Storage):
    """A pending new voice counts towards the limit as long as it may land. It counts once, however often it
    is tried, and an upload that never lands counts no more than 26 minutes.
    """
    storage.register("alice")
    reserve(storage, "bob")
    reserve(storage, "bob")
    with pytest.raises(QuotaExceeded):
        reserve(storage, "carol")
    reserve(storage, "alice")
    storage.clock.sleep(LANDING_SECONDS + 1)
    reserve(storage, "carol")
    with pytest.raises(QuotaExceeded):
        reserve(storage, "bob")
    assert storage.register("alice", number=2).created
    storage.delete("alice")
    assert storage.register("dave").created
    with pytest.raises(QuotaExceeded):
        reserve(storage, "alice")


@pytest.mark.parametrize("asked", [{"request": "r", "idempotency": "k"}, {"request": "r", "immutable": True}])
def test_a_place_that_is_asked_for_again_counts_again(storage: Storage, asked: dict[str, Any]):
    """A place that is requested again counts again. A place is kept longer than it counts, and other voices
    may have arrived meanwhile.
    """
    reserve(storage, "alice", **asked)
    storage.clock.sleep(LANDING_SECONDS - 10)
    reserve(storage, "alice", **asked)
    storage.clock.sleep(20)
    reserve(storage, "bob")
    with pytest.raises(QuotaExceeded):
        reserve(storage, "carol")


def test_a_place_that_others_have_taken_meanwhile_is_not_given_again(storage: Storage):
    asked = {"request": "r", "idempotency": "k"}
    reserve(storage, "alice", **asked)
    storage.clock.sleep(LANDING_SECONDS + 1)
    storage.register("bob")
    storage.register("carol")
    with pytest.raises(QuotaExceeded):
        reserve(storage, "alice", **asked)


def test_what_a_delete_does_not_take_counts_after_it(storage: Storage):
    """A version that a delete does not cover counts after it. An upload that began after the delete lands
    after it, and one that began before it does not.
    """
    storage.register("alice")
    reserve(storage, "alice")
    tombstone = storage.index.reserve_tombstone(speaker_id("alice"))
    reserve(storage, "alice")
    storage.index.apply_tombstone(speaker_id("alice"), tombstone.seq, tombstone.number, tombstone.created_at)
    storage.register("bob")
    with pytest.raises(QuotaExceeded):
        reserve(storage, "carol")


def test_a_ready_embedding_is_served_at_once_and_never_made_anew(storage: Storage):
    registered = storage.register_embedding("alice")
    assert registered.jobs == {}
    number, _ = storage.served("alice")
    assert number == 1
    claims = storage.operations.extractions.ensure(speaker_id("alice"), registered.version, [PROFILE])
    assert claims[PROFILE].outcome == "ready"
    with pytest.raises(CacheUnsupported, match="needs reference audio"):
        storage.operations.extractions.ensure(speaker_id("alice"), registered.version, [WIDER])


def test_an_embedding_takes_the_place_of_a_clip_at_once(storage: Storage):
    """An embedding replaces a clip at once, because it needs no extraction."""
    storage.ready("alice")
    storage.register_embedding("alice")
    assert storage.served("alice")[0] == 2


@pytest.mark.parametrize("width", [7, 2048])
def test_an_embedding_that_fits_no_required_profile_is_refused(storage: Storage, width: int):
    """An embedding that fits no required profile is refused. The owner of 2048 numbers in a fleet of models
    that take 1024 would otherwise find out at the first request.
    """
    with pytest.raises(EmbeddingWidthMismatch, match=rf"has {width} elements; .* take \[1024\]"):
        storage.register_embedding("alice", width=width)
    assert storage.objects("alice") == []


def test_an_embedding_that_is_one_of_two_encoders_is_refused(redis_client: object, opened: Open):
    """An embedding that may be of either of two encoders is refused. Both make 192 numbers, and neither
    understands the other's: one of the engines would get noise.
    """
    storage = opened(profiles=("ming-tts", "ecapa-voxceleb", PROFILE))
    says = r"192 elements, .* ming-tts, ecapa-voxceleb\. .* PUT /v1/voices/\{name\}/.*/artifacts/\{profile\}"
    with pytest.raises(EmbeddingWidthMismatch, match=says):
        storage.register_embedding("alice", width=192)
    assert storage.objects("alice") == []
    assert storage.register_embedding("alice").created, "1024 numbers are one encoder's"


def test_a_committed_version_is_acknowledged_though_its_job_cannot_be_queued(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """A committed version is acknowledged though its job cannot be queued. Without an answer the caller would
    send the clip again; housekeeping will queue the job.
    """

    with monkeypatch.context() as without_queue:
        without_queue.setattr(storage.parts.dispatcher, "enqueue", refuse)
        assert storage.register("alice").created
    storage.settle()
    storage.check_settled("alice")
    assert storage.served("alice")


def while_it_is_answered(
    storage: Storage, do: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> Registered:
    """Register alice and call `do` once her version is committed and its job is queued."""
    enqueue = storage.parts.dispatcher.enqueue

    def overtaken(*arguments: Any) -> None:
        enqueue(*arguments)
        monkeypatch.undo()
        do()

    monkeypatch.setattr(storage.parts.dispatcher, "enqueue", overtaken)
    return storage.register("alice")


def test_a_worker_may_be_quicker_than_the_answer(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    registered = while_it_is_answered(storage, storage.finish_all, monkeypatch)
    assert registered.created
    assert registered.jobs.keys() == {PROFILE}
    assert registered.version in registered.indexed.speaker.versions
    assert storage.operations.statuses.state(registered.indexed, registered.version) == "ready"
    assert held_back(storage.operations.statuses, registered.indexed, registered.version) is None


@pytest.mark.parametrize("again", [False, True])
def test_a_delete_may_overtake_the_answer(storage: Storage, monkeypatch: pytest.MonkeyPatch, again: bool):
    """A delete may overtake the answer. The answer is about the version that was made, though it is gone, and
    also if the name belongs to another voice now.
    """

    def replace() -> None:
        storage.delete("alice")
        if again:
            storage.register("alice", number=2)

    registered = while_it_is_answered(storage, replace, monkeypatch)
    assert registered.created
    assert registered.indexed.speaker.versions == (registered.version,)
    assert registered.version.number == 1
