"""Registering, extracting, promoting and deleting on a real Valkey and a real local folder, without HTTP."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.embedded.valkey import ValkeyServer
from services.registry_api.operations.registration import Registered, Upload, _Registration, register_clip
from services.shared.bucket.epochs import LOOK_SECONDS, Epochs
from services.shared.bucket.facts import truth_of
from services.shared.bucket.identity import bucket_identity
from services.shared.bucket.store import ObjectUnavailable
from services.shared.configuration.settings import HousekeepingSettings
from services.shared.index import gate, redis_access
from services.shared.index.gate import BOOT, GateClosed, LayoutNewer, RedisTaken
from services.shared.index.jobs import Jobs
from services.shared.index.refusals import EpochOver, FactsDue
from services.shared.index.speaker_index import (
    COMMIT_SECONDS,
    DIRTY,
    LANDING_SECONDS,
    ORPHANED_SECONDS,
    REPEAT_SECONDS,
    WINDOW_SECONDS,
    ClaimResult,
    Reservation,
    SpeakerIndex,
    speaker_key,
)
from services.shared.model.domain import AliasFact
from speaker_registry.errors import (
    CacheUnsupported,
    EmbeddingWidthMismatch,
    IdempotencyKeyReused,
    InvalidArtifact,
    JobNotFound,
    PreconditionFailed,
    QuotaExceeded,
    RegistrationInProgress,
    Unavailable,
    VoiceExists,
    VoiceNotFound,
    VoiceUnreadable,
)
from speaker_registry.names import parse_speaker_name
from tests.integration.api.registry import until
from tests.integration.storage import (
    NAMESPACE,
    NEXT_FINGERPRINT,
    PROFILE,
    WIDER,
    Storage,
    clip,
    speaker_id,
)
from tests.redis_commands import count_sent

Open = Callable[..., Storage]


@pytest.fixture
def opened(tmp_path: Path, valkey: ValkeyServer) -> Iterator[Open]:
    """Opens storages, each with a folder of its own, on one Redis that is empty at first."""
    with ExitStack() as stack:

        def make(folder: str = "bucket", server: ValkeyServer = valkey, **settings: Any) -> Storage:
            return stack.enter_context(Storage(tmp_path / folder, server.url, **settings))

        yield make


@pytest.fixture
def storage(redis_client: object, opened: Open) -> Storage:
    return opened()


def at_once(count: int, do: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(do, range(count)))


def refuse(*_: object, **__: object) -> None:
    raise Unavailable("not now")


# -- registering


def test_uploads_of_one_voice_at_the_same_time_lose_none(storage: Storage):
    """Each gets a version of its own, in one order, with its own clip."""
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
    """Its answer was lost; to send it again must be safe, whatever came between."""
    first = storage.register("alice", idempotency_key="k")
    storage.register("alice", number=2)
    again = storage.register("alice", idempotency_key="k")
    assert (again.version.vuid, again.created) == (first.version.vuid, False)
    assert again.jobs == first.jobs
    assert len(storage.truth("alice").versions) == 2


def test_a_request_keeps_its_place_while_it_is_repeated(storage: Storage):
    """What its last attempt stores may land late; given another place by then, it would be there twice."""

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
        HousekeepingSettings(grace_seconds=ORPHANED_SECONDS)


def test_one_request_sent_many_times_at_once_makes_one_version(storage: Storage):
    """Before the first has been stored, there is nothing to recognise it by but its key."""
    made = at_once(8, lambda _: storage.register("alice", idempotency_key="k"))
    assert len({one.version.vuid for one in made}) == 1
    assert len(storage.truth("alice").versions) == 1
    assert len(storage.jobs("alice")) == 1


Meanwhile = Callable[[Callable[[], object]], None]


@pytest.fixture
def before_it_reserves(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Call it with what is to happen once, after the next upload has looked for what it made before."""
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
    """The second looked before the first was registered, and its place is forgotten with the old server."""
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
    """As above, with another clip: it is no repeat."""

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
    """Whoever sends it again wants a version that stays."""
    made = []

    def meanwhile() -> None:
        made.append(storage.register("alice", idempotency_key="k"))
        storage.index.reserve_tombstone(speaker_id("alice"))

    before_it_reserves(meanwhile)
    again = storage.register("alice", idempotency_key="k")
    assert again.created
    assert again.version.vuid != made[0].version.vuid


def _died_after_its_fact(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that stores a version, and the index is not told; nor does housekeeping come for an hour."""

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
    """Reading a thousand versions before each upload would cost more than the upload."""
    storage.register("alice", idempotency_key="k")
    storage.clock.sleep(2 * LANDING_SECONDS)
    monkeypatch.setattr(storage.index, "admit", lambda *_: pytest.fail("its facts were read"))
    assert storage.register("alice", number=2, idempotency_key="l").version.number == 2


def test_one_key_for_different_requests_at_once_is_good_for_one_of_them(storage: Storage):
    """The others must not be given its place: two clips would share one version."""

    def upload(number: int) -> bool:
        try:
            return storage.register("alice", number=number, idempotency_key="k").created
        except IdempotencyKeyReused:
            return False

    assert at_once(8, upload).count(True) == 1
    assert len(storage.truth("alice").versions) == 1
    assert len(storage.objects("alice")) == 3, "its record, its clip, its rendition"


def test_a_key_that_met_a_version_that_was_there_stands_for_it(storage: Storage):
    """A late repeat of an upload that had long been answered took the voice back from a newer one."""
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
    """Both attempts would have been answered, with different versions."""
    slow = _held_before_its_fact(storage, "alice", idempotency_key="k")
    storage.register("alice")  # the same, by somebody else
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
    """Scripts upload the same folder every night."""
    first = storage.register("alice")
    assert storage.register("alice").version.vuid == first.version.vuid
    assert storage.register("alice", ref_text="hello").version.number == 2
    assert storage.register("alice", ref_text="hello", dedupe=False).version.number == 3
    assert storage.register("alice").version.number == 4, "only the newest version counts"


def test_an_immutable_voice_is_not_overwritten(redis_client: object, opened: Open):
    """And nothing is stored of the attempt."""
    storage = opened(registration_policy="immutable")
    storage.register("alice")
    before = storage.objects("alice")
    with pytest.raises(VoiceExists, match="delete it first"):
        storage.register("alice", number=2)
    assert storage.objects("alice") == before
    storage.registrar.delete(NAMESPACE, "alice")
    assert storage.register("alice", number=2).version.number == 2


def test_of_many_registrations_of_one_immutable_voice_at_once_one_succeeds(
    redis_client: object, opened: Open
):
    """The others are told to come back, because the first may fail yet."""
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
    storage.registrar.delete(NAMESPACE, "alice")
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
    storage.registrar.delete(NAMESPACE, "alice")
    assert storage.register("carol").created


def test_new_voices_that_come_at_once_are_no_more_than_allowed(
    redis_client: object, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """Of 16 uploads that came together, 7 were let in where 5 were allowed: none had been counted yet."""
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
    """A place for a version that is on its way from now on; two voices are allowed."""
    given = {"vuid": storage.clock.new_id(), "max_speakers": 2, "immutable": False} | asked
    return storage.index.reserve_version(speaker_id(name), **given)


def test_a_new_voice_on_its_way_counts_as_long_as_it_may_land(storage: Storage):
    """It counts once, however often it is tried; and what never lands counts no more than 26 minutes."""
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
    storage.registrar.delete(NAMESPACE, "alice")
    assert storage.register("dave").created
    with pytest.raises(QuotaExceeded):
        reserve(storage, "alice")


@pytest.mark.parametrize("asked", [{"request": "r", "idempotency": "k"}, {"request": "r", "immutable": True}])
def test_a_place_that_is_asked_for_again_counts_again(storage: Storage, asked: dict[str, Any]):
    """A place is kept longer than it counts, and others may have come meanwhile."""
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
    """An upload that began after the delete lands after it, and one that began before it does not."""
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
    claims = storage.registrar.ensure(speaker_id("alice"), registered.version, [PROFILE])
    assert claims[PROFILE].outcome == "ready"
    with pytest.raises(CacheUnsupported, match="needs reference audio"):
        storage.registrar.ensure(speaker_id("alice"), registered.version, [WIDER])


def test_an_embedding_takes_the_place_of_a_clip_at_once(storage: Storage):
    """There is nothing to wait for."""
    storage.ready("alice")
    storage.register_embedding("alice")
    assert storage.served("alice")[0] == 2


@pytest.mark.parametrize("width", [7, 2048])
def test_an_embedding_that_fits_no_required_profile_is_refused(storage: Storage, width: int):
    """Who uploads 2048 numbers to a fleet of models that take 1024 would find out at the first request."""
    with pytest.raises(EmbeddingWidthMismatch, match=rf"has {width} elements; .* take \[1024\]"):
        storage.register_embedding("alice", width=width)
    assert storage.objects("alice") == []


def test_an_embedding_that_is_one_of_two_encoders_is_refused(redis_client: object, opened: Open):
    """Both make 192 numbers, of which neither understands the other's: one of the engines would get noise."""
    storage = opened(profiles=("ming-tts", "ecapa-voxceleb", PROFILE))
    says = r"192 elements, .* ming-tts, ecapa-voxceleb\. .* PUT /v1/voices/\{name\}/.*/artifacts/\{profile\}"
    with pytest.raises(EmbeddingWidthMismatch, match=says):
        storage.register_embedding("alice", width=192)
    assert storage.objects("alice") == []
    assert storage.register_embedding("alice").created, "1024 numbers are one encoder's"


def test_a_committed_version_is_acknowledged_though_its_job_cannot_be_queued(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """The caller would send the clip again; housekeeping will queue the job."""

    with monkeypatch.context() as without_queue:
        without_queue.setattr(storage.parts.dispatcher, "enqueue", refuse)
        assert storage.register("alice").created
    storage.settle()
    storage.check_settled("alice")
    assert storage.served("alice")


def while_it_is_answered(
    storage: Storage, do: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> Registered:
    """Register alice, whose version is committed and whose job is queued, and then comes `do`."""
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
    assert storage.registrar.state(registered.indexed, registered.version) == "ready"
    assert storage.registrar.held_back(registered.indexed, registered.version) is None


@pytest.mark.parametrize("again", [False, True])
def test_a_delete_may_overtake_the_answer(storage: Storage, monkeypatch: pytest.MonkeyPatch, again: bool):
    """The answer is about what was made, though it is gone; also where the name is somebody else's now."""

    def replace() -> None:
        storage.registrar.delete("default", "alice")
        if again:
            storage.register("alice", number=2)

    registered = while_it_is_answered(storage, replace, monkeypatch)
    assert registered.created
    assert registered.indexed.speaker.versions == (registered.version,)
    assert registered.version.number == 1


# -- extracting


def test_many_who_ask_for_one_artifact_share_one_job(storage: Storage):
    """An engine's replicas all start at the same time."""
    registered = storage.register("alice")
    ask = storage.registrar.ensure
    claims = at_once(50, lambda _: ask(speaker_id("alice"), registered.version, [WIDER])[WIDER])
    assert sorted(claim.outcome for claim in claims) == ["claimed"] + ["flying"] * 49
    assert len({claim.job_id for claim in claims}) == 1
    assert [job.profile for job in storage.jobs("alice")].count(WIDER) == 1
    assert storage.raw.llen(f"rq:queue:extract.{WIDER}") == 1


def test_a_forced_rebuild_is_a_new_build_and_the_old_one_serves_until_it_is_ready(storage: Storage):
    version = storage.ready("alice").version
    before = storage.served("alice")
    claim = storage.registrar.ensure(speaker_id("alice"), version, [PROFILE], force=True)[PROFILE]
    assert (claim.outcome, claim.build) == ("claimed", 2)
    assert storage.registrar.ensure(speaker_id("alice"), version, [PROFILE])[PROFILE].outcome == "ready"
    work = storage.take("alice")
    assert storage.served("alice") == before
    storage.publish(work[0])
    assert storage.served("alice") not in (before, None)
    storage.check_settled("alice")


def test_a_failure_is_final_until_somebody_insists(storage: Storage):
    """A clip that no encoder takes must not keep workers busy for ever."""
    version = storage.register("alice").version
    storage.publisher.fail(storage.take("alice")[0], CacheUnsupported("cannot"))
    assert storage.registrar.ensure(speaker_id("alice"), version, [PROFILE])[PROFILE].outcome == "failed"
    claim = storage.registrar.ensure(speaker_id("alice"), version, [PROFILE], force=True)[PROFILE]
    assert claim.outcome == "claimed"
    storage.finish_all()
    storage.check_settled("alice")


def test_a_new_fingerprint_makes_every_voice_anew(storage: Storage):
    """Without anybody asking; meanwhile what was made with the old one is not served as if it were new."""
    storage.ready("alice")
    storage.announce(NEXT_FINGERPRINT)
    assert storage.served("alice") is None
    storage.settle()
    assert storage.served("alice")
    storage.check_settled("alice")


def test_two_attempts_of_one_job_leave_one_artifact(storage: Storage):
    """A worker that was taken for dead comes back: what is served stays, and nothing is left over."""
    storage.register("alice")
    slow = storage.take("alice")[0]
    quick = storage.take("alice")[0]
    assert (slow.number, quick.number) == (1, 2)
    assert storage.publish(quick)
    before = storage.served("alice")
    assert storage.publish(slow), "it is there, whoever made it"
    assert storage.served("alice") == before
    assert len([key for key in storage.objects("alice") if "/art/" in key]) == 2, "bytes and fact"
    storage.check_settled("alice")


def test_of_two_attempts_that_both_landed_the_first_one_counts(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first worker died just before it told the index. The second one's copy goes."""
    storage.register("alice")
    (work,) = storage.take("alice")
    with monkeypatch.context() as dying:
        dying.setattr(storage.index, "apply_artifact", refuse)
        with pytest.raises(Unavailable):
            storage.publish(work)
    (landed,) = (key for key in storage.objects("alice") if key.endswith(".json"))
    os.utime(tmp_path / "bucket" / landed, (1_700_000_000, 1_700_000_000))
    assert storage.served("alice") is None
    storage.finish_all("alice")
    assert storage.served("alice")[1].removeprefix("sha256:") in landed
    assert len([key for key in storage.objects("alice") if "/art/" in key]) == 2, "bytes and fact"
    storage.check_settled("alice")


# -- promoting


def test_default_moves_when_the_last_wanted_profile_is_ready(redis_client: object, opened: Open):
    """Before that, an engine that needs the other profile would find nothing."""
    storage = opened(profiles=(PROFILE, WIDER))
    storage.ready("alice")
    storage.register("alice", number=2)
    one, other = storage.take("alice")
    storage.publish(one)
    assert storage.served("alice")[0] == 1
    storage.publish(other)
    assert storage.served("alice")[0] == 2


def test_the_newest_complete_version_is_promoted_in_whatever_order_they_end(storage: Storage):
    """A slow extraction of an older version must not turn the voice back."""
    storage.ready("alice")
    storage.register("alice", number=2)
    storage.register("alice", number=3)
    second, third = storage.take("alice")
    storage.publish(third)
    storage.publish(second)
    assert storage.served("alice")[0] == 3


def test_default_moves_in_the_moment_that_the_artifact_is_there(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """Who has waited until version 2 is ready finds it under the bare name."""
    storage.ready("alice")
    storage.register("alice", number=2)
    promoted_later = []
    monkeypatch.setattr(storage.registrar, "promote", promoted_later.append)
    storage.finish_all("alice")
    assert storage.served("alice")[0] == 2
    assert promoted_later == [speaker_id("alice")]


def test_a_move_by_hand_is_not_undone_by_a_promotion(storage: Storage):
    """Version 2 sounded wrong while it was still being extracted for the next profile."""
    first = storage.ready("alice").version
    storage.register("alice", number=2)
    seq = storage.index.reserve_alias(speaker_id("alice"), "default", expected=0)
    fact = AliasFact(seq, "default", first.vuid, storage.clock.new_id())
    storage.store.put(speaker_id("alice").alias_key(fact), b"{}")
    storage.index.apply_alias(speaker_id("alice"), fact)
    storage.finish_all()
    storage.settle()
    assert storage.served("alice")[0] == 1
    assert len([key for key in storage.objects("alice") if ".als." in key]) == 1, "nobody even tried"
    storage.ready("alice", number=3)
    assert storage.served("alice")[0] == 3, "registered after they chose"


def test_no_engine_loses_a_voice_to_a_version_that_serves_fewer(redis_client: object, opened: Open):
    """An embedding fits one of two models. Those that run the other one keep the clip's."""
    storage = opened(profiles=(PROFILE, WIDER))
    storage.ready("alice")
    storage.register_embedding("alice")
    storage.settle()
    assert storage.served("alice")[0] == storage.served("alice", WIDER)[0] == 1
    storage.register_embedding("bob")
    storage.register_embedding("bob", description="better")
    assert storage.served("bob")[0] == 2, "nobody has less than before"


def test_a_version_that_serves_nothing_is_left_for_one_that_serves_something(
    redis_client: object, opened: Open
):
    """Extraction of the clip failed for good in both profiles; then somebody brings a ready embedding."""
    storage = opened(profiles=(PROFILE, WIDER))
    storage.register("alice")
    for work in storage.take("alice"):
        storage.publisher.fail(work, InvalidArtifact("hopeless"))
    storage.register_embedding("alice")
    assert storage.served("alice")[0] == 2


def test_a_worker_with_an_outdated_encoder_promotes_nothing(storage: Storage):
    """Its artifact is stale as it lands: engines would lose the version that was made anew already."""
    first = storage.ready("alice")
    storage.register("alice", number=2)
    (outdated,) = storage.take("alice")
    storage.announce(NEXT_FINGERPRINT)
    anew = storage.registrar.claim(speaker_id("alice"), first.version, outdated.provenance.profile)
    provenance = replace(outdated.provenance, fingerprint=NEXT_FINGERPRINT)
    storage.publish(storage.publisher.take(anew.job_id, speaker_id("alice"), provenance))
    assert storage.served("alice")[0] == 1
    storage.publish(outdated)
    assert storage.served("alice")[0] == 1
    storage.settle()
    assert storage.served("alice")[0] == 2


@pytest.mark.parametrize("profiles", [(PROFILE,), (PROFILE, WIDER)])
def test_a_slow_upload_does_not_push_aside_what_is_served_already(
    redis_client: object, opened: Open, profiles: tuple[str, ...]
):
    """It asked for its place first, and until something is promoted the oldest version is the default. Of
    several profiles one is enough to be served.
    """
    storage = opened(profiles=profiles)
    place = storage.index.reserve_version(speaker_id("alice"), max_speakers=10, immutable=False)
    second = storage.register("alice", number=2).version.record
    storage.publish(next(work for work in storage.take("alice") if work.provenance.profile.name == PROFILE))
    late = second.model_copy(update={"number": place.number, "vuid": storage.clock.new_id()})
    storage.store.put(speaker_id("alice").version_key(place.seq, late), late.to_json().encode())
    storage.index.apply_version(speaker_id("alice"), place.seq, late)
    assert storage.served("alice")[0] == 2


def test_of_two_promotions_the_later_takes_nothing_that_the_earlier_gave(
    redis_client: object, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """Versions 1 and 3 serve only one model. Version 3 is about to take over when version 2 is ready for
    both.
    """
    storage = opened(profiles=(PROFILE, WIDER))
    storage.register("alice")
    storage.register("alice", number=2)
    storage.register("alice", number=3)
    works = {(work.version.number, work.provenance.profile.name): work for work in storage.take("alice")}
    for number in (1, 3):
        storage.publisher.fail(works[number, WIDER], InvalidArtifact("hopeless"))
    storage.publish(works[1, PROFILE])
    put = storage.store.put
    seen: list[Any] = []

    def put_slowly(key: str, data: bytes) -> None:
        if ".als.default." in key and not seen:
            seen.append("version 3 is on its way")
            storage.publish(works[2, PROFILE])
            storage.publish(works[2, WIDER])
            seen.append(storage.served("alice", WIDER))
        put(key, data)

    monkeypatch.setattr(storage.store, "put", put_slowly)
    storage.publish(works[3, PROFILE])
    storage.settle()
    assert seen == ["version 3 is on its way", None]
    assert storage.served("alice")[0] == 3


def test_a_promotion_that_died_on_its_way_holds_up_only_what_it_could_harm(
    redis_client: object, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """The store was away when version 2 was promoted."""
    storage = opened(profiles=(PROFILE, WIDER))
    storage.ready("alice")
    storage.register("alice", number=2)
    put = storage.store.put
    with monkeypatch.context() as patched:
        patched.setattr(
            storage.store, "put", lambda key, data: refuse() if ".als." in key else put(key, data)
        )
        storage.finish_all("alice")
    assert storage.served("alice")[0] == 1
    storage.ready("alice", number=3)
    assert storage.served("alice")[0] == 3, "it serves the same"


def test_of_versions_with_the_same_number_the_younger_is_promoted(storage: Storage):
    """As after a loss of Redis, when two uploads were given the same place in turn."""
    first = storage.ready("alice").version
    twin = first.record.model_copy(update={"vuid": storage.clock.new_id()})
    storage.store.put(speaker_id("alice").version_key(first.seq + 1, twin), twin.to_json().encode())
    storage.settle()
    storage.finish_all("alice")
    assert storage.registrar.find(NAMESPACE, "alice").speaker.default.vuid == twin.vuid


# -- deleting


def test_a_deleted_voice_is_gone_at_once_and_comes_back_only_as_a_new_one(storage: Storage):
    storage.ready("alice")
    storage.registrar.delete(NAMESPACE, "alice")
    for attempt in (storage.registrar.find, storage.registrar.delete):
        with pytest.raises(VoiceNotFound):
            attempt(NAMESPACE, "alice")
    assert storage.served("alice") is None
    assert storage.ready("alice").version.number == 2
    storage.sweep()
    storage.check_settled("alice")
    versions = {key.split("/d/")[1].split("/")[0] for key in storage.objects("alice") if "/d/" in key}
    assert len(versions) == 1, "nothing is left of the first"


@pytest.mark.parametrize("key", ["k", None])
def test_a_delete_that_never_lands_counts_only_while_it_may(storage: Storage, key: str | None):
    """Its process was killed before it stored anything. While nobody knows that, a repeated upload must not
    be answered with what would be deleted; for ever would mean a second version for each key.
    """
    first = storage.register("alice", idempotency_key=key)
    storage.index.reserve_tombstone(speaker_id("alice"))
    storage.clock.sleep(WINDOW_SECONDS - 10)
    storage.index.admit(speaker_id("alice"))
    assert storage.index.look(speaker_id("alice")).deleting
    storage.clock.sleep(20)
    again = storage.register("alice", idempotency_key=key)
    assert (again.version.vuid, again.created) == (first.version.vuid, False)
    assert not storage.index.look(speaker_id("alice")).deleting
    assert len(storage.truth("alice").versions) == 1


def test_a_delete_that_landed_is_not_on_its_way_any_more(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """Else the next upload would read all facts first."""
    storage.register("alice")
    storage.registrar.delete(NAMESPACE, "alice")
    storage.clock.sleep(2 * WINDOW_SECONDS)
    monkeypatch.setattr(storage.index, "admit", lambda *_: pytest.fail("its facts were read"))
    assert storage.register("alice", number=2, idempotency_key="l").created


def test_a_delete_that_slept_for_too_long_stores_nothing(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """By then a repeated upload may have been answered with the version that it would delete."""
    storage.register("alice", idempotency_key="k")
    reserve = storage.index.reserve_tombstone

    def reserve_and_sleep(*given: Any, **said: Any) -> Any:
        place = reserve(*given, **said)
        storage.clock.sleep(COMMIT_SECONDS + 1)
        return place

    monkeypatch.setattr(storage.index, "reserve_tombstone", reserve_and_sleep)
    with pytest.raises(Unavailable, match="took too long"):
        storage.registrar.delete(NAMESPACE, "alice")
    assert storage.truth("alice").live


def test_a_delete_of_a_voice_that_changed_meanwhile_is_refused(storage: Storage):
    """Who says which one is to go must not take another with it."""
    storage.register("alice")
    with pytest.raises(PreconditionFailed):
        storage.registrar.delete(NAMESPACE, "alice", check=lambda _: storage.register("alice", number=2))
    assert len(storage.registrar.find(NAMESPACE, "alice").speaker.versions) == 2


def test_an_extraction_that_a_delete_overtakes_comes_too_late(storage: Storage):
    """A worker cannot bring a deleted voice back."""
    storage.register("alice")
    work = storage.take("alice")[0]
    storage.registrar.delete(NAMESPACE, "alice")
    assert [job.state for job in storage.jobs("alice")] == ["superseded"]
    assert not storage.publish(work)
    assert [job.state for job in storage.jobs("alice")] == ["superseded"]
    storage.sweep()
    assert [key.split("/")[3] for key in storage.objects("alice")] == ["r"], "only the tombstone"
    assert not storage.registrar.look_up(speaker_id("alice")).speaker.live


def test_an_extraction_of_a_deleted_voice_does_nothing_for_its_successor(storage: Storage):
    """Same name, another person."""
    storage.register("alice")
    work = storage.take("alice")[0]
    storage.registrar.delete(NAMESPACE, "alice")
    storage.register("alice", number=2)
    assert not storage.publish(work)
    assert storage.served("alice") is None
    storage.finish_all()
    storage.check_settled("alice")


def test_repairs_go_on_when_the_clock_is_set_back(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """By an hour: what was due in ten seconds would wait for that hour."""
    storage.register("alice")
    for key in storage.raw.scan_iter("rq:*"):
        storage.raw.delete(key)
    monkeypatch.setattr(storage.index, "_clock", lambda: storage.clock.now() - 3600)
    storage.settle()
    storage.check_settled("alice")
    assert storage.served("alice")


# -- while the index cannot be trusted


def lose_redis(storage: Storage, *, reconnect: bool = True) -> None:
    """Emptied, or replaced by an empty server: then connections have to be made anew."""
    storage.raw.flushall()
    if reconnect:
        storage.index.redis.connection_pool.disconnect()


@pytest.mark.parametrize("reconnect", [True, False], ids=["replaced", "emptied"])
def test_reads_and_writes_go_on_at_once_after_a_loss_of_redis(storage: Storage, reconnect: bool):
    """Each voice is read from its facts when it is needed; nobody waits until all of them have been."""
    version = storage.ready("alice").version
    storage.ready("bob")
    before = storage.served("alice")
    storage.clock.sleep(4)
    lose_redis(storage, reconnect=reconnect)
    assert storage.served("alice") == before
    assert storage.register("alice", number=2).version.number == 2
    assert set(storage.registrar.ensure(speaker_id("alice"), version, [WIDER])) == {WIDER}
    storage.registrar.delete(NAMESPACE, "bob")
    assert storage.register("carol").version.number == 1
    assert storage.index.gate_open()
    assert not storage.index.complete()


def test_a_list_tells_all_voices_while_some_are_not_in_the_index_yet(storage: Storage):
    """A page that leaves out what is not admitted yet would pass for the whole."""
    version = storage.ready("alice").version
    storage.clock.sleep(2)
    lose_redis(storage)
    storage.register("bob")
    page = storage.registrar.page(NAMESPACE, limit=10)
    assert [one.speaker.newest.record.name for one in page.speakers] == ["alice", "bob"]
    assert (page.speakers[0].speaker.newest.vuid, page.more) == (version.vuid, False)
    with pytest.raises(GateClosed):
        storage.index.usage(NAMESPACE)
    storage.housekeeper.rebuild()
    assert storage.index.usage(NAMESPACE)[0] == 2


def test_a_name_that_nobody_uses_leaves_nothing_in_redis(storage: Storage):
    """Else whoever may read could fill it while the index is being rebuilt."""
    lose_redis(storage)
    with pytest.raises(VoiceNotFound):
        storage.registrar.find(NAMESPACE, "nobody")
    assert not storage.raw.exists(speaker_key(speaker_id("nobody")))


def test_a_number_belongs_to_one_version_though_redis_is_lost_between_two_uploads(storage: Storage):
    """The first upload has reserved its number and is slow; the index that comes after the loss knows nothing
    of that and gives the same number out again.
    """
    storage.ready("alice")
    slow = _held_before_its_fact(storage, "alice", number=2)
    lose_redis(storage)
    quick = storage.register("alice", number=3).version
    with pytest.raises(Unavailable):
        slow()
    assert quick.number == 2
    storage.settle()
    assert storage.registrar.find(NAMESPACE, "alice").speaker.resolve(2).vuid == quick.vuid
    assert storage.truth("alice").resolve(2).vuid == quick.vuid
    storage.check_settled("alice")


def test_a_version_from_before_the_loss_is_acknowledged_only_once_a_census_counts_it(storage: Storage):
    """Its uploader is told to send it again, and then is given the version that it made."""
    storage.ready("alice")
    slow = _held_before_its_fact(storage, "alice", number=2, idempotency_key="the same")
    lose_redis(storage)
    storage.registrar.find(NAMESPACE, "alice")  # admitted, without the version that is on its way
    with pytest.raises(Unavailable):
        slow()
    again = storage.register("alice", number=2, idempotency_key="the same")
    assert (again.created, again.version.number) == (False, 2)
    assert storage.truth("alice").census.vuids >= {again.version.vuid}


def test_an_upload_of_a_new_name_soon_after_an_index_was_begun_is_refused_no_place_on_the_way(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """Every upload takes a census then, also the first half hour of a new registry. It read the facts, told
    them and asked for a place twice before.
    """
    lose_redis(storage)
    storage.housekeeper.rebuild()
    scripts, call = [], storage.parts.index.call

    def record(script: str, *arguments: Any) -> Any:
        scripts.append(script)
        return call(script, *arguments)

    monkeypatch.setattr(storage.parts.index, "call", record)
    storage.register("alice")
    before = scripts[: scripts.index("apply_version")]
    assert before == ["look", "tell", "census", "census", "look", "reserve"]
    assert storage.truth("alice").census.seq > 0


ADMITTED: dict[str, Callable[[Storage], Any]] = {
    "by a request": lambda storage: storage.registrar.find(NAMESPACE, "alice"),
    "by a rebuild": lambda storage: storage.housekeeper.rebuild(),
}


@pytest.mark.parametrize("admit", ADMITTED.values(), ids=ADMITTED)
def test_a_forced_rebuild_right_after_a_loss_takes_no_number_that_is_taken(
    storage: Storage, tmp_path: Path, admit: Callable[[Storage], Any]
):
    """The artifact is too young to tell whether it counts, so the new index does not know its build. Given
    out again, the rebuild would be taken for done as soon as that is known, and the old artifact would stay.
    """
    version = storage.ready("alice").version
    storage.clock.sleep(10)
    old = storage.objects("alice")

    def extract(*, force: bool) -> ClaimResult:
        """For a profile that nobody has to have: housekeeping does not miss its artifact."""
        return storage.registrar.ensure(speaker_id("alice"), version, [WIDER], force=force)[WIDER]

    extract(force=False)
    storage.finish_all("alice")
    before = storage.served("alice", WIDER)
    (fact,) = (key for key in storage.objects("alice") if key.endswith(".json") and key not in old)
    later = storage.clock.now() + 100
    os.utime(tmp_path / "bucket" / fact, (later, later))
    lose_redis(storage)
    admit(storage)
    with pytest.raises(Unavailable, match="Send the request again in a few seconds") as refused:
        extract(force=True)
    assert refused.value.retry_after_seconds == 3
    storage.settle()
    assert storage.served("alice", WIDER) == before
    claim = extract(force=True)
    assert (claim.outcome, claim.build) == ("claimed", 2)
    storage.finish_all("alice")
    assert storage.served("alice", WIDER) not in (before, None)
    storage.check_settled("alice")


def test_an_artifact_that_is_brought_right_after_a_loss_replaces_none_that_was_served(
    storage: Storage, tmp_path: Path
):
    """The one that was served is too young to tell whether it counts, so the new index does not know it. Of
    two in the same second the later one would count, and what engines have cached would change.
    """
    version = storage.ready("alice").version
    served = storage.served("alice")
    (fact,) = (key for key in storage.objects("alice") if key.endswith(".json") and "/art/" in key)
    later = storage.clock.now() + 100
    os.utime(tmp_path / "bucket" / fact, (later, later))
    lose_redis(storage)

    def bring() -> int:
        akey = version.artifact_key(PROFILE, storage.fingerprint, 1)
        return storage.index.begin_upload(speaker_id("alice"), version.vuid, akey, token="token")

    with pytest.raises(Unavailable, match="Send the request again in a few seconds") as refused:
        bring()
    assert refused.value.retry_after_seconds == 3
    storage.clock.sleep(110)  # nobody keeps house: an API process may not be there
    assert bring() == 0, "there is one already"
    assert storage.served("alice") == served


def _held_before_its_fact(storage: Storage, name: str, **said: Any) -> Callable[[], Registered]:
    """An upload that has stored everything but its fact. Call what is returned to let it go on."""
    put, held = storage.store.put, threading.Event()
    reached = threading.Event()

    def hold(key: str, data: bytes) -> None:
        if ".ver." in key and threading.current_thread().name == "slow":
            reached.set()
            assert held.wait(30)
        put(key, data)

    storage.store.put = hold  # type: ignore[method-assign]
    results: list[Any] = []

    def upload() -> None:
        try:
            results.append(storage.register(name, **said))
        except Unavailable as error:
            results.append(error)

    thread = threading.Thread(target=upload, name="slow")
    thread.start()
    assert reached.wait(30)

    def go_on() -> Registered:
        held.set()
        thread.join(30)
        (result,) = results
        if isinstance(result, Exception):
            raise result
        return result

    return go_on


@pytest.mark.slow
def test_a_silent_server_keeps_nobody_waiting_for_long(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """Suspended, or behind a network that swallows everything. Reads go on, and notice when it is back."""
    monkeypatch.setattr(redis_access, "ANSWER_SECONDS", 60.0)
    with ValkeyServer(tmp_path / "own") as server:
        storage = opened(server=server)
        storage.ready("alice")
        storage.clock.sleep(4)
        os.kill(server._process.pid, signal.SIGSTOP)
        try:
            sent = count_sent(monkeypatch)
            for _ in range(20):
                assert storage.served("alice")[0] == 1
                assert len(storage.registrar.page(NAMESPACE, limit=10).entries) == 1
            assert len(sent) == 1, "one call waits, and no other sends anything"
            with pytest.raises(Unavailable):
                storage.register("bob")
        finally:
            os.kill(server._process.pid, signal.SIGCONT)
        until(lambda: _accepts(storage, "bob"))


def _accepts(storage: Storage, name: str) -> bool:
    try:
        return storage.register(name).created
    except Unavailable:
        return False


def test_a_rebuild_brings_everything_back_after_a_loss_of_redis(storage: Storage):
    storage.ready("alice")
    storage.register("alice", number=2)
    storage.ready("bob")
    storage.ready("carol")
    storage.registrar.delete(NAMESPACE, "carol")
    before = storage.served("alice")
    storage.clock.sleep(4)
    lose_redis(storage)
    assert storage.housekeeper.rebuild() == 3
    assert storage.index.names(NAMESPACE, limit=9) == ["alice", "bob"]
    assert storage.served("alice") == before
    storage.settle()
    assert storage.served("alice")[0] == 2, "its lost job was started anew"
    for name in ("alice", "bob", "carol"):
        storage.check_settled(name)
    assert storage.register("carol").version.number == 2, "marks survive, too"


def test_a_rebuild_has_every_voice_looked_after(storage: Storage):
    """What Redis was told last is gone with a roll-back: the job, and that somebody was to look."""
    storage.settle()
    storage.register("alice")
    storage.raw.delete(BOOT, DIRTY, *storage.raw.scan_iter("rq:*"))
    storage.housekeeper.rebuild()
    storage.settle()
    storage.check_settled("alice")
    assert storage.served("alice")


def test_a_fingerprint_that_redis_forgot_in_a_roll_back_is_read_from_the_facts(storage: Storage):
    """Its copy is older than what the worker announced: artifacts made before would pass for new."""
    old = storage.raw.hgetall("sr:profiles")
    storage.announce(NEXT_FINGERPRINT)
    storage.raw.hset("sr:profiles", mapping=old)
    storage.raw.delete(BOOT)
    storage.housekeeper.rebuild()
    assert storage.parts.announcements.current(PROFILE).fingerprint == NEXT_FINGERPRINT


def test_an_announcement_that_cannot_be_read_is_not_read_every_second(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """While Redis does not know the profile, each look would list its announcements again and log it."""
    announcements, listed, list_objects = storage.parts.announcements, [], storage.store.list

    def counted(prefix: str, *given: Any, **said: Any) -> Any:
        listed.append(prefix)
        return list_objects(prefix, *given, **said)

    [stored] = storage.store.list(f"_profiles/{PROFILE}/").objects
    storage.store.put(stored.key.replace("/000000000001.", "/000000000002."), b"damaged")
    storage.raw.delete("sr:profiles")
    monkeypatch.setattr(storage.store, "list", counted)
    announcements.look_anew()
    for _ in range(4):
        assert announcements.current(PROFILE) is None
        storage.clock.sleep(2)
    once = len(listed)
    assert set(listed) == {f"_profiles/{PROFILE}/"}
    assert once <= 2
    storage.clock.sleep(4)
    assert announcements.current(PROFILE) is None
    assert len(listed) == 2 * once, "it may have been restored"
    storage.announce(NEXT_FINGERPRINT)
    assert announcements.current(PROFILE).fingerprint == NEXT_FINGERPRINT, "of that Redis knows"


def test_a_redis_that_holds_the_index_of_another_bucket_is_refused(storage: Storage):
    """Voices of one must not appear in the other, and two registries must not take the server from each
    other.
    """
    storage.ready("alice")
    other = _index(storage, bucket_identity(storage.store, storage.clock) + "x")
    assert not other.gate_open()
    with pytest.raises(RedisTaken):
        other.load(speaker_id("alice"))
    other.close()
    assert storage.index.load(speaker_id("alice")).speaker.live, "nothing was taken from the first"


def _index(storage: Storage, bucket: str) -> SpeakerIndex:
    epochs = Epochs(storage.store, storage.clock)
    return SpeakerIndex(storage.parts.settings.redis_url, bucket, truth_of(storage.store), epochs)


def test_an_index_of_a_lower_layout_is_begun_anew_once(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """Its keys are not where a newer release looks: every voice would seem to be gone. An older release that
    runs at the same time leaves the index to the newer one: reads go by the facts, writes wait.
    """
    storage.ready("alice")
    storage.clock.sleep(4)
    epoch, newer_layout = storage.index.epoch, gate.LAYOUT + 1
    newer = _index(storage, bucket_identity(storage.store, storage.clock))
    with closing(newer), monkeypatch.context() as newer_release:
        newer_release.setattr(gate, "LAYOUT", newer_layout)
        assert newer.load(speaker_id("alice")).speaker.live, "read from its facts"
        begun = newer.epoch
        assert begun > epoch

    for _ in range(2):
        assert not storage.index.gate_open()
        assert storage.served("alice") is not None
        with pytest.raises(LayoutNewer, match=f"layout {newer_layout}, .* layout {gate.LAYOUT}. Accepted"):
            storage.register("bob")
    assert storage.raw.get(BOOT) == newer.stamp, "it was not begun again"
    started = _index(storage, bucket_identity(storage.store, storage.clock))
    with closing(started), pytest.raises(LayoutNewer):
        started.load(speaker_id("alice"))

    storage.clock.sleep(LOOK_SECONDS + 1)
    storage.raw.flushdb()  # the way back to the older release
    assert storage.register("bob").version.number == 1
    assert storage.index.load(speaker_id("alice")).speaker.live
    assert storage.index.epoch > begun


def test_a_lower_layout_is_refused_also_where_the_server_has_lost_the_index(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """Else each restart of the server would begin one index for each release."""
    storage.index.open()
    boot = storage.raw.get(BOOT)
    before, _, after = boot.partition(f"/{gate.LAYOUT}/")
    lost = f"another{before}/{gate.LAYOUT + 4}/{after}"
    storage.raw.set(BOOT, lost)
    with pytest.raises(LayoutNewer, match=f"layout {gate.LAYOUT + 4}"):
        storage.index.open()
    assert storage.raw.get(BOOT) == lost
    storage.raw.set(BOOT, lost.replace(f"/{gate.LAYOUT + 4}/", f"/{gate.LAYOUT - 1}/"))
    assert storage.index.open().startswith(f"{before}/{gate.LAYOUT}/"), "begun anew"


def test_an_artifact_stays_whose_version_cannot_be_read_when_it_is_told(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """Redis was lost after its fact was stored, and the new index cannot read the version's record for now:
    told that the version is dead, the worker would delete what it has just published.
    """
    storage.register("alice")
    [work] = storage.take("alice")
    apply, get = storage.index.apply_artifact, storage.store.get

    def refuse_versions(key: str) -> bytes:
        if ".ver." in key:
            raise ObjectUnavailable("archived")
        return get(key)

    def lose_first(*arguments: Any, **options: Any) -> str:
        storage.clock.sleep(4)
        lose_redis(storage)
        monkeypatch.setattr(storage.store, "get", refuse_versions)
        return apply(*arguments, **options)

    monkeypatch.setattr(storage.index, "apply_artifact", lose_first)
    with pytest.raises(VoiceUnreadable):
        storage.publish(work)
    assert any(key.endswith(".json") for key in storage.objects("alice"))
    assert any(key.endswith(".safetensors") for key in storage.objects("alice"))
    monkeypatch.undo()
    storage.housekeeper.rebuild()
    storage.settle()
    assert storage.served("alice")


RESERVED = ("jobs", "job", "names", "v", "in", "rate", "place", "lock", "keys", "boot")


def test_a_rebuild_forgets_no_namespace_whatever_it_is_called(storage: Storage):
    """What is left of an older index is told by the place of a word in a key, not by the word."""
    for namespace in RESERVED:
        upload = Upload(name=parse_speaker_name("alice"), consent="c")
        register_clip(storage.parts, storage.registrar, namespace, upload, *clip(1))
    lose_redis(storage)
    storage.raw.set("sr:in:default:names", "of an older layout")
    storage.housekeeper.rebuild()
    assert storage.index.complete()
    assert not storage.raw.exists("sr:in:default:names")
    for namespace in RESERVED:
        assert storage.index.names(namespace, limit=9) == ["alice"]
        assert storage.registrar.find(namespace, "alice").speaker.live


def test_a_rebuild_of_an_older_index_takes_nothing_from_the_one_after_it(storage: Storage):
    """Another process has begun the next one before this one forgets what is left of older ones. It used to
    take its names: live voices were missing from the lists. A voice that is just being registered is in no
    bucket yet.
    """
    storage.ready("alice")
    with closing(_index(storage, bucket_identity(storage.store, storage.clock))) as other:
        lose_redis(storage, reconnect=False)
        other.open()
        other.admit(speaker_id("alice"))
        other.begin_census(speaker_id("bob"))
        with pytest.raises(EpochOver):
            storage.index.forget_older(lambda one: one == speaker_id("alice"))
        storage.raw.set("sr:complete", str(other.epoch))
        assert other.names(NAMESPACE, limit=9) == ["alice"]
        assert storage.raw.exists(speaker_key(speaker_id("bob")))


def test_a_voice_that_one_listing_leaves_out_is_rebuilt_all_the_same(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """The store denied a whole folder once. What a complete index does not know is taken for no voice."""
    storage.ready("alice")
    storage.clock.sleep(4)
    lose_redis(storage)
    once, tell = [[]], storage.store.folders
    monkeypatch.setattr(storage.store, "folders", lambda prefix: once.pop() if once else tell(prefix))
    assert storage.housekeeper.rebuild() == 1
    assert storage.index.complete()
    assert storage.served("alice")


def test_namespaces_have_nothing_in_common_whatever_they_are_called(storage: Storage):
    """Also after what our own keys are called."""
    for namespace in RESERVED:
        for name in ("queued", "names", namespace):
            data, decoded = clip(1)
            upload = Upload(name=parse_speaker_name(name), consent="c")
            register_clip(storage.parts, storage.registrar, namespace, upload, data, decoded)
    for namespace in RESERVED:
        expected = sorted({"queued", "names", namespace})
        assert storage.index.names(namespace, limit=99) == expected
        assert storage.index.usage(namespace)[0] == len(expected)
        jobs = Jobs(storage.index).page(namespace, limit=99).found
        assert sorted(job.name for job in jobs) == expected
        assert Jobs(storage.index).page(namespace, state="queued", limit=99).found == jobs
        for name in (*expected, "0"):
            with pytest.raises(JobNotFound):
                Jobs(storage.index).get(namespace, name)
