"""Tests of the time in which the index cannot be trusted: after a loss of Redis, or next to another index."""

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from services.embedded.valkey import ValkeyServer
from services.registry_api.operations.registration import Upload
from services.shared.bucket.epochs import LOOK_SECONDS, Epochs
from services.shared.bucket.facts import truth_of
from services.shared.bucket.identity import bucket_identity
from services.shared.bucket.store import ObjectUnavailable
from services.shared.index import gate, redis_access
from services.shared.index.gate import BOOT, GateClosed, LayoutNewer, RedisTaken
from services.shared.index.jobs import Jobs
from services.shared.index.refusals import EpochOver
from services.shared.index.speaker_index import (
    DIRTY,
    ClaimResult,
    SpeakerIndex,
    speaker_key,
)
from services.shared.view import generation as view
from speaker_registry.errors import (
    JobNotFound,
    Unavailable,
    VoiceNotFound,
    VoiceUnreadable,
)
from speaker_registry.names import parse_speaker_name
from tests.integration.conftest import Open
from tests.integration.storage import (
    NAMESPACE,
    NEXT_FINGERPRINT,
    PROFILE,
    WIDER,
    Storage,
    clip,
    held_before_its_fact,
    lose_redis,
    speaker_id,
)
from tests.queue_workers import wait_until
from tests.redis_commands import count_sent


def test_repairs_go_on_when_the_clock_is_set_back(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """Repairs go on when the clock is set back by an hour. A repair that was due in ten seconds would
    otherwise wait for that hour.
    """
    storage.register("alice")
    for key in storage.raw.scan_iter("rq:*"):
        storage.raw.delete(key)
    monkeypatch.setattr(storage.index, "_clock", lambda: storage.clock.now() - 3600)
    storage.settle()
    storage.check_settled("alice")
    assert storage.served("alice")


@pytest.mark.parametrize("reconnect", [True, False], ids=["replaced", "emptied"])
def test_reads_and_writes_go_on_at_once_after_a_loss_of_redis(storage: Storage, reconnect: bool):
    """Reads and writes go on at once after a loss of Redis. Each voice is read from its facts when it is
    needed, and no request waits until all of them have been.
    """
    version = storage.ready("alice").version
    storage.ready("bob")
    before = storage.served("alice")
    storage.clock.sleep(4)
    lose_redis(storage, reconnect=reconnect)
    assert storage.served("alice") == before
    assert storage.register("alice", number=2).version.number == 2
    assert set(storage.operations.extractions.ensure(speaker_id("alice"), version, [WIDER])) == {WIDER}
    storage.delete("bob")
    assert storage.register("carol").version.number == 1
    assert storage.index.gate_open()
    assert not storage.index.complete()


def test_a_list_tells_all_voices_while_some_are_not_in_the_index_yet(storage: Storage):
    """A list has all voices while some are not in the index yet. A page without those voices would pass for
    the whole.
    """
    version = storage.ready("alice").version
    storage.clock.sleep(2)
    lose_redis(storage)
    storage.register("bob")
    page = storage.operations.pages.page(NAMESPACE, limit=10)
    assert [one.speaker.newest.record.name for one in page.speakers] == ["alice", "bob"]
    assert (page.speakers[0].speaker.newest.vuid, page.more) == (version.vuid, False)
    with pytest.raises(GateClosed):
        storage.index.usage(NAMESPACE)
    storage.housekeeper.rebuild()
    assert storage.index.usage(NAMESPACE)[0] == 2


def test_a_name_that_nobody_uses_leaves_nothing_in_redis(storage: Storage):
    """A name that is not in use leaves nothing in Redis. Any caller that may read could otherwise fill it
    while the index is being rebuilt.
    """
    lose_redis(storage)
    with pytest.raises(VoiceNotFound):
        storage.operations.speakers.find(NAMESPACE, "nobody")
    assert not storage.raw.exists(speaker_key(speaker_id("nobody")))


def test_a_number_belongs_to_one_version_though_redis_is_lost_between_two_uploads(storage: Storage):
    """A number belongs to one version though Redis is lost between two uploads. The first upload has reserved
    its number and is slow; the index that comes after the loss knows nothing of that and assigns the same
    number again.
    """
    storage.ready("alice")
    slow = held_before_its_fact(storage, "alice", number=2)
    lose_redis(storage)
    quick = storage.register("alice", number=3).version
    with pytest.raises(Unavailable):
        slow()
    assert quick.number == 2
    storage.settle()
    assert storage.speaker("alice").resolve(2).vuid == quick.vuid
    assert storage.truth("alice").resolve(2).vuid == quick.vuid
    storage.check_settled("alice")


def test_a_version_from_before_the_loss_is_acknowledged_only_once_a_census_counts_it(storage: Storage):
    """A version from before the loss is acknowledged only once a census counts it. Its uploader is told to
    send it again, and then gets the version that it made.
    """
    storage.ready("alice")
    slow = held_before_its_fact(storage, "alice", number=2, idempotency_key="the same")
    lose_redis(storage)
    storage.operations.speakers.find(NAMESPACE, "alice")  # admitted, without the version that is on its way
    with pytest.raises(Unavailable):
        slow()
    again = storage.register("alice", number=2, idempotency_key="the same")
    assert (again.created, again.version.number) == (False, 2)
    assert storage.truth("alice").census.vuids >= {again.version.vuid}


def test_an_upload_of_a_new_name_soon_after_an_index_was_begun_is_refused_no_place_on_the_way(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """An upload of a new name soon after an index was begun gets a place at its first request. Every upload
    takes a census then, also in the first half hour of a new registry. It used to read the facts, tell them
    and request a place twice.
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
    "by a request": lambda storage: storage.operations.speakers.find(NAMESPACE, "alice"),
    "by a rebuild": lambda storage: storage.housekeeper.rebuild(),
}


@pytest.mark.parametrize("admit", ADMITTED.values(), ids=ADMITTED)
def test_a_forced_rebuild_right_after_a_loss_takes_no_number_that_is_taken(
    storage: Storage, tmp_path: Path, admit: Callable[[Storage], Any]
):
    """A forced rebuild right after a loss uses no build number twice. The artifact is too young to tell if it
    counts, so the new index does not know its build. If that number were assigned again, the rebuild would
    count as done as soon as that is known, and the old artifact would stay.
    """
    version = storage.ready("alice").version
    storage.clock.sleep(10)
    old = storage.objects("alice")

    def extract(*, force: bool) -> ClaimResult:
        """Extract a profile that is not required: housekeeping does not miss its artifact."""
        return storage.operations.extractions.ensure(speaker_id("alice"), version, [WIDER], force=force)[
            WIDER
        ]

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
    """An artifact that is uploaded right after a loss does not change which artifact was served. The one that
    was served is too young to tell if it counts, so the new index does not know it. Of two in the same second
    the later one would count, and what engines have cached would change.
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
    storage.clock.sleep(110)  # no housekeeping runs: an API process may not be there
    assert bring() == 0, "there is one already"
    assert storage.served("alice") == served


@pytest.mark.slow
def test_a_silent_server_keeps_nobody_waiting_for_long(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """A silent server delays no request for long, when it is suspended or behind a network that drops
    everything. Reads go on, and notice when it is back.
    """
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
                assert len(storage.operations.pages.page(NAMESPACE, limit=10).entries) == 1
            assert len(sent) == 1, "one call waits, and no other sends anything"
            with pytest.raises(Unavailable):
                storage.register("bob")
        finally:
            os.kill(server._process.pid, signal.SIGCONT)
        wait_until(lambda: _accepts(storage, "bob"))


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
    storage.delete("carol")
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
    """A rebuild makes every voice due. A roll-back of Redis removes what was written last: the job, and the
    note that the voice was due.
    """
    storage.settle()
    storage.register("alice")
    storage.raw.delete(BOOT, DIRTY, *storage.raw.scan_iter("rq:*"))
    storage.housekeeper.rebuild()
    storage.settle()
    storage.check_settled("alice")
    assert storage.served("alice")


def test_a_fingerprint_that_redis_forgot_in_a_roll_back_is_read_from_the_bucket(storage: Storage):
    """The copy in a server that was rolled back is older than what the worker announced, and artifacts made
    before would pass for new.
    """
    old = {str(key): storage.raw.dump(key) for key in storage.raw.scan_iter("sr:*")}
    storage.announce(NEXT_FINGERPRINT)
    storage.generation.look()  # every process does so each second
    for key, value in old.items():
        storage.raw.restore(key, 0, value, replace=True)
    storage.clock.sleep(view.LOOK_SECONDS)
    storage.generation.look()
    storage.parts.profile_records.look_anew()
    assert storage.parts.profile_records.fingerprint(PROFILE) == NEXT_FINGERPRINT


def test_a_redis_that_holds_the_index_of_another_bucket_is_refused(storage: Storage):
    """A Redis that holds the index of another bucket is refused. Voices of one must not appear in the other,
    and two registries must not take the server from each other.
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
    """An index of a lower layout is begun anew once. Its keys are not where a newer release looks: every
    voice would seem to be gone. An older release that runs at the same time leaves the index to the newer
    one: it reads from the facts, and its writes wait.
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
    """A lower layout is refused even if the server has lost the index. Each restart of the server would
    otherwise begin one index for each release.
    """
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
    """An artifact stays when its version cannot be read at the moment of publishing. Redis was lost after its
    fact was stored, and the new index cannot read the version's record for now. If the worker were told that
    the version is dead, it would delete what it has just published.
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
    """A rebuild forgets no namespace whatever its name. Remains of an older index are recognised by the
    position of a word in a key, not by the word.
    """
    for namespace in RESERVED:
        upload = Upload(name=parse_speaker_name("alice"), consent="c")
        storage.operations.registrations.register_clip(namespace, upload, *clip(1))
    lose_redis(storage)
    storage.raw.set("sr:in:default:names", "of an older layout")
    storage.housekeeper.rebuild()
    assert storage.index.complete()
    assert not storage.raw.exists("sr:in:default:names")
    for namespace in RESERVED:
        assert storage.index.names(namespace, limit=9) == ["alice"]
        assert storage.operations.speakers.find(namespace, "alice").speaker.live


def test_a_rebuild_of_an_older_index_takes_nothing_from_the_one_after_it(storage: Storage):
    """A rebuild of an older index removes nothing of the one after it. Another process has begun the next one
    before this one forgets what is left of older ones. It used to remove the next one's names: live voices
    were missing from the lists. A voice that is just being registered is in no bucket yet.
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
    """A voice that one listing leaves out is rebuilt all the same. The store denied a whole folder once. A
    name that a complete index does not know is treated as no voice.
    """
    storage.ready("alice")
    storage.clock.sleep(4)
    lose_redis(storage)
    once, tell = [[]], storage.store.folders
    monkeypatch.setattr(storage.store, "folders", lambda prefix: once.pop() if once else tell(prefix))
    assert storage.housekeeper.rebuild() == 1
    assert storage.index.complete()
    assert storage.served("alice")


def test_namespaces_have_nothing_in_common_whatever_they_are_called(storage: Storage):
    """Namespaces have nothing in common whatever their names are, also the names of the
    registry's own keys.
    """
    for namespace in RESERVED:
        for name in ("queued", "names", namespace):
            data, decoded = clip(1)
            upload = Upload(name=parse_speaker_name(name), consent="c")
            storage.operations.registrations.register_clip(namespace, upload, data, decoded)
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
