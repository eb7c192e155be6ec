"""Tests of a voice with very many versions: what it may cost other callers, and what is required of callers
that make them.
"""

from pathlib import Path

import numpy as np
import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance.housekeeping import Housekeeper
from services.registry_api.operations.artifact_upload import ReadyArtifact
from services.shared.bucket.keys import SpeakerId
from services.shared.configuration.settings import HousekeepingSettings
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import SpeakerIndex, VersionSelection
from speaker_registry.errors import QuotaExceeded
from speaker_registry.names import LATEST
from tests.integration.storage import NAMESPACE, PROFILE, Storage, speaker_id

MANY = 200
CONSENT = "cons_1"


@pytest.fixture
def crowded(storage: Storage) -> Storage:
    """A voice of which version 1 is ready and the default, and is followed by many
    versions that are not ready.
    """
    storage.ready("alice")
    record = storage.truth("alice").versions[0].record
    first = storage.index.look(speaker_id("alice")).speaker.seq + 1
    for number in range(2, MANY + 1):
        copy = record.model_copy(
            update={
                "vuid": f"{number:032d}",
                "number": number,
                "ref_text": "word " * 100,
                "idempotency": f"key{number}",
            }
        )
        storage.index.apply_version(speaker_id("alice"), first + number, copy)
    return storage


def count_versions_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each look from now on appends how many versions it read."""
    read: list[int] = []
    look = SpeakerIndex.look

    def counted(self: SpeakerIndex, *arguments: object) -> object:
        indexed = look(self, *arguments)  # type: ignore[arg-type]
        read.append(len(indexed.speaker.versions))
        return indexed

    monkeypatch.setattr(SpeakerIndex, "look", counted)
    return read


def test_a_look_reads_the_versions_that_are_asked_for_and_no_others(crowded: Storage):
    """A look reads the requested versions and no others. Reading them all took 0.85 s and half a GB with 500
    versions: time and memory that others need.
    """
    for reference in ("default", 1, 100, MANY):
        indexed, version = crowded.operations.speakers.find_version(NAMESPACE, "alice", reference)
        assert version.number == (1 if reference == "default" else reference)
        assert {one.number for one in indexed.speaker.versions} == {1, version.number, MANY}
        assert indexed.version_count == MANY
    asked_again = crowded.index.look(speaker_id("alice"), VersionSelection(idempotency="key77"))
    assert [one.number for one in asked_again.speaker.versions] == [1, 77, MANY]


def test_what_a_look_moves_over_the_network_does_not_grow_with_the_versions(crowded: Storage):
    """The bytes that a look transfers do not grow with the versions. They are the same for a voice with two
    versions as for one with two hundred.
    """

    def moved(name: str) -> int:
        before = crowded.raw.info("stats")["total_net_output_bytes"]
        between = crowded.raw.info("stats")["total_net_output_bytes"]
        crowded.index.look(speaker_id(name))
        after = crowded.raw.info("stats")["total_net_output_bytes"]
        return int((after - between) - (between - before))

    crowded.ready("bob")
    newest = crowded.index.look(speaker_id("alice")).speaker.newest.record
    copy = newest.model_copy(update={"vuid": f"{7:032d}", "number": 2})
    crowded.index.apply_version(speaker_id("bob"), 2 * 10**11, copy)
    assert abs(moved("alice") - moved("bob")) < 200


def test_versions_are_listed_page_by_page(crowded: Storage):
    numbers, before, more = [], None, True
    while more:
        indexed, page, more = crowded.operations.pages.versions(NAMESPACE, "alice", before=before, limit=30)
        assert len(indexed.speaker.versions) <= 33
        numbers += [version.number for version in page]
        before = numbers[-1]
    assert numbers == list(range(MANY, 0, -1))


@pytest.mark.parametrize("redis", ["there", "away"])
def test_a_page_of_versions_with_long_texts_ends_early(
    storage: Storage, redis: str, monkeypatch: pytest.MonkeyPatch
):
    """A page of versions with long texts ends early. A hundred with the longest texts were an answer of 6.4
    MB, which was in memory in one piece.
    """
    for number in range(1, 8):
        storage.register("alice", number=number, ref_text="x" * (1 if number == 3 else 1000))
    monkeypatch.setattr("services.registry_api.operations.speaker_pages.PAGE_BYTES", 2020)
    if redis == "away":
        truth = IndexedSpeaker(storage.truth("alice"))
        monkeypatch.setattr(storage.operations.speakers, "look_up", lambda *_: truth)
    pages, before, more = [], None, True
    while more:
        indexed, page, more = storage.operations.pages.versions(NAMESPACE, "alice", before=before, limit=100)
        assert redis == "away" or len(indexed.speaker.versions) <= 4, "the newest and the oldest, too"
        pages.append([version.number for version in page])
        before = pages[-1][-1]
    assert [number for page in pages for number in page] == [7, 6, 5, 4, 3, 2, 1]
    assert max(len(page) for page in pages) <= 3, "more than the room that there is"
    assert min(len(page) for page in pages[:-1]) >= 2, "one alone does not fill it"


def test_a_page_has_a_version_however_long_its_texts_are(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """A page has a version however long its texts are. A client that follows the pages would otherwise never
    come to an end.
    """
    for number in (1, 2, 3):
        storage.register("alice", number=number, ref_text="x" * 1000)
    monkeypatch.setattr("services.registry_api.operations.speaker_pages.PAGE_BYTES", 1)
    for before, number in ((None, 3), (3, 2), (2, 1)):
        _, page, more = storage.operations.pages.versions(NAMESPACE, "alice", before=before, limit=100)
        assert ([version.number for version in page], more) == ([number], number > 1)
    assert storage.operations.pages.versions(NAMESPACE, "alice", before=1, limit=100)[1:] == ([], False)


def test_latest_is_found_behind_any_number_of_versions_that_are_not_ready(
    crowded: Storage, monkeypatch: pytest.MonkeyPatch
):
    """`latest` is found behind any number of versions that are not ready. Each version was read until one was
    ready: with a thousand, for a quarter of a second.
    """
    read = count_versions_read(monkeypatch)
    _, version = crowded.operations.speakers.find_version(NAMESPACE, "alice", LATEST)
    assert version.number == 1
    assert sum(read) <= 4


def test_latest_is_found_where_it_came_with_its_artifact(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """`latest` is found when it was registered with its artifact. The index has no artifact of its own then:
    the version's record has it.
    """
    given = storage.register_embedding("alice")
    for number in range(2, 40):
        storage.register("alice", number=number)
    read = count_versions_read(monkeypatch)
    _, version = storage.operations.speakers.find_version(NAMESPACE, "alice", LATEST)
    assert version.vuid == given.version.vuid
    assert sum(read) <= 4


def test_an_upload_and_a_promotion_read_few_versions_too(crowded: Storage, monkeypatch: pytest.MonkeyPatch):
    """An upload and a promotion read few versions too, because each new version must not cost more than the
    one before.
    """

    def refused(*_: object) -> None:
        raise AssertionError("all versions are read")

    read = count_versions_read(monkeypatch)
    monkeypatch.setattr(SpeakerIndex, "load", refused)
    crowded.register("alice", number=2)
    [work] = crowded.take("alice")
    crowded.publish(work)
    assert crowded.speaker("alice").default.number == MANY + 1
    assert max(read) <= 5


@pytest.mark.parametrize("lost", [False, True], ids=["jobs wait", "jobs are lost"])
def test_housekeeping_reads_all_versions_no_more_often_with_many_jobs(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, lost: bool
):
    """Housekeeping reads all versions no more often with many jobs. It read them all once for each job: with
    a thousand of each, a process did nothing else.
    """
    for number in range(1, 21):
        storage.register("alice", number=number)
    if lost:
        for job in storage.jobs("alice"):
            storage.parts.dispatcher.remove(job.id, job.queue)
    loads = []
    load = SpeakerIndex.load

    def counted(self: SpeakerIndex, speaker_id: SpeakerId) -> IndexedSpeaker:
        loads.append(speaker_id)
        return load(self, speaker_id)

    monkeypatch.setattr(SpeakerIndex, "load", counted)
    housekeeper = Housekeeper(
        storage.parts,
        storage.operations,
        HousekeepingSettings(),
        lambda: 0,
    )
    assert housekeeper.repairs.repair(speaker_id("alice")) is not None
    assert len(loads) <= 3
    waiting = {job.id for job in storage.jobs("alice", open_only=True)}
    assert len(waiting) == 20
    dispatcher = storage.parts.dispatcher
    assert {dispatcher.state(job, PROFILE) for job in waiting} == {"alive"}


# -- limits


def test_a_voice_has_so_many_versions_and_no_more(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis):
    """A voice has a limited number of versions. One key filled Redis with versions of a single voice, which
    were not counted.
    """
    with Storage(tmp_path / "bucket", valkey.url, max_versions=2) as storage:
        for number in (1, 2):
            storage.register("alice", number=number)
        with pytest.raises(QuotaExceeded, match="has 2 versions, which is as many as SPEAKER_MAX_VERSIONS"):
            storage.register("alice", number=3)
        assert storage.register("alice", number=2).created is False, "the same again is no new version"
        storage.register("bob", number=3)
        storage.delete("alice")
        assert storage.register("alice", number=3).version.number == 3


def test_texts_count_as_the_bytes_that_redis_holds(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis):
    """Texts count as the bytes that Redis holds. Clips lie in the bucket; 72 KB of texts with each lay in
    Redis, and were not counted.
    """
    with Storage(tmp_path / "bucket", valkey.url, max_stored_bytes=10_000) as storage:
        said = "Größe " * 100
        texts = len("alice") + len(CONSENT) + len(said.encode()) + len("Low.")
        storage.register("alice", ref_text=said, description="Low.")
        used = len(b"clip 1") + texts
        assert storage.index.usage(NAMESPACE) == (1, used, texts)
        with pytest.raises(QuotaExceeded, match="may take 10000, see GET /v1/quota"):
            storage.register("bob", ref_text="x" * (10_000 - used))
        storage.delete("alice")
        assert storage.index.usage(NAMESPACE) == (0, 0, 0)


def test_texts_have_a_limit_of_their_own(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis):
    """Texts have a limit of their own. Without one, a single key filled Redis with the texts of its versions,
    while the bucket had room.
    """
    with Storage(tmp_path / "bucket", valkey.url, max_text_bytes=1000) as storage:
        texts = 2 * len(f"alice{CONSENT}") + 500
        storage.register("alice", number=1, ref_text="x" * 500)
        storage.register("alice", number=2)
        left = 1000 - texts - len(f"bob{CONSENT}")
        with pytest.raises(QuotaExceeded, match=rf"with {1001 - texts} bytes.* take 1000.*_MAX_TEXT_BYTES"):
            storage.register("bob", ref_text="x" * (left + 1))
        assert storage.index.usage(NAMESPACE)[2] == texts
        storage.register("bob", ref_text="x" * left)
        assert storage.index.usage(NAMESPACE)[2] == 1000
        assert storage.register("alice", number=2).created is False, "the same again is no new version"
        storage.delete("alice")
        storage.register("carol", ref_text="x" * 500)


def test_after_a_loss_of_redis_texts_count_as_before(
    tmp_path: Path, valkey: ValkeyServer, redis_client: Redis
):
    """Texts count after a loss of Redis as before. A loss would otherwise give each namespace its room once
    more.
    """
    with Storage(tmp_path / "bucket", valkey.url, max_text_bytes=1000) as storage:
        storage.register("alice", ref_text="x" * 900)
        storage.raw.flushall()
        storage.index.redis.connection_pool.disconnect()
        storage.housekeeper.rebuild()
        assert storage.index.usage(NAMESPACE)[2] == len(f"alice{CONSENT}") + 900
        with pytest.raises(QuotaExceeded, match="SPEAKER_MAX_TEXT_BYTES"):
            storage.register("bob", ref_text="x" * 100)


def bring(storage: Storage, name: str, value: float) -> bool:
    version = storage.speaker(name).newest
    tensors = {
        "speaker_embedding": np.full(1024, value, np.float32),
        "ref_code": np.zeros((15, 16), np.int32),
    }
    given = ReadyArtifact(tensors=tensors, fingerprint=storage.fingerprint)
    return storage.operations.uploads.store(speaker_id(name), version, PROFILE, given)


def test_artifacts_that_are_brought_count_and_those_that_are_made_do_not(storage: Storage):
    """Uploaded artifacts count towards the limit and extracted ones do not. Uploads are as large as their
    sender likes.
    """
    storage.ready("alice")
    before = storage.index.usage(NAMESPACE)[1]
    assert before == len(b"clip 1") + len("alice") + len(CONSENT)
    assert bring(storage, "alice", 0.5)
    brought = storage.speaker("alice").newest.artifact(PROFILE, storage.fingerprint)
    assert brought is not None
    assert storage.index.usage(NAMESPACE)[1] == before + brought.size
    storage.delete("alice")
    assert storage.index.usage(NAMESPACE)[1] == 0


def test_an_artifact_that_there_is_no_room_for_leaves_nothing_behind(
    tmp_path: Path, valkey: ValkeyServer, redis_client: Redis
):
    with Storage(tmp_path / "bucket", valkey.url, max_stored_bytes=2000) as storage:
        storage.register("alice")
        objects = storage.objects("alice")
        with pytest.raises(QuotaExceeded, match=r"Artifact of \d+ bytes refused"):
            bring(storage, "alice", 0.5)
        assert storage.objects("alice") == objects


def test_an_artifact_is_made_so_often_by_force_and_no_more(
    tmp_path: Path, valkey: ValkeyServer, redis_client: Redis
):
    """The number of forced builds of an artifact is limited. 300 forced builds left 509 objects and 264 KB in
    Redis, which were not counted.
    """
    with Storage(tmp_path / "bucket", valkey.url, max_builds=2) as storage:
        storage.ready("alice")
        operations = storage.operations

        def force() -> None:
            version = operations.speakers.find(NAMESPACE, "alice").speaker.newest
            operations.extractions.ensure(speaker_id("alice"), version, [PROFILE], force=True)
            storage.finish_all("alice")

        force()
        with pytest.raises(QuotaExceeded, match=r"made 2 times already.*SPEAKER_MAX_BUILDS"):
            force()
        with pytest.raises(QuotaExceeded, match="made 2 times already"):
            bring(storage, "alice", 0.5)
        version = operations.speakers.find(NAMESPACE, "alice").speaker.newest
        assert (
            operations.extractions.ensure(speaker_id("alice"), version, [PROFILE])[PROFILE].outcome == "ready"
        )
