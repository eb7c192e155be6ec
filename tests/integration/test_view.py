"""Tests of the copies in Redis and of their generation, on real servers."""

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.shared.bucket import durable_folder
from services.shared.bucket.documents import Documents
from services.shared.bucket.folder_store import FolderStore
from services.shared.bucket.layout import VIEW
from services.shared.bucket.store import Object, WritesRefused
from services.shared.model import aliases, changes
from services.shared.model.document import Counts, SpeakerDocument
from services.shared.model.records import Version, unseal
from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.view import generation as generation_module
from services.shared.view import job_records, open_jobs, view_document
from services.shared.view.agenda import Agenda
from services.shared.view.away import LeftBehind, RedisTaken, ViewAway
from services.shared.view.copies import Held, SpeakerView, packed
from services.shared.view.generation import SETTLED_SECONDS, UNWATCHED_SECONDS, Generation
from services.shared.view.job_records import JobRecords
from services.shared.view.keys import events_key, open_jobs_key
from services.shared.view.open_jobs import OpenJobs
from services.shared.view.stamp import SECTIONS, STAMP, Stamp, history_of
from services.shared.view.view_document import ASKED_SECONDS, REREAD_SECONDS, Named
from speaker_registry.errors import JobNotFound, Unavailable
from tests.opened_registry import MovableClock
from tests.queue_workers import wait_until

WREN = SpeakerId("default", "wren")
NOTHING = SpeakerDocument()


class Bucket(FolderStore):
    """A folder that can be taken away, or that answers only when it is told to."""

    away = False
    answers: Event | None = None
    goes_away = ""
    """Whether the store goes away "before" or "after" the next swap is made, or not at all."""

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        when, self.goes_away = self.goes_away, ""
        self.away = self.away or when == "before"
        if self.away:
            raise Unavailable("The object store is not available.")
        swapped = super().swap(key, data, etag=etag)
        if when == "after":
            self.away = True
            raise Unavailable("The reply was lost.")
        return swapped

    def read(self, key: str) -> Object:
        if self.away:
            raise Unavailable("The object store is not available.")
        if self.answers is not None:
            assert self.answers.wait(10), "nothing should wait for this store"
        return super().read(key)


class World:
    """One bucket, and processes of the registry that use it with any Redis."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.clock = MovableClock()
        self.store = Bucket(folder)
        self.documents = Documents(self.store, self.clock)
        self._stack = stack

    def process(
        self, server: ValkeyServer, kind: type[Generation] = Generation, bucket: str = "b/1"
    ) -> Generation:
        """Return the view of a process that has just started."""
        started = kind(server.url, bucket, self.documents, self.clock)
        self._stack.callback(started.close)
        return started

    @property
    def named(self) -> Named:
        return Named.of(self.documents.read(VIEW))


@pytest.fixture
def world(tmp_path: Path, redis_client: Redis) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path / "bucket", stack)


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path_factory.mktemp("other")) as server:
        yield server


@pytest.fixture
def other(other_server: ValkeyServer) -> ValkeyServer:
    """Return a second server, which is empty."""
    with Redis.from_url(other_server.url) as client:
        client.flushall()
    return other_server


def following(before: SpeakerDocument, after: SpeakerDocument) -> SpeakerDocument:
    return after.following(before, None, at=100, by="k", did="test")


def with_version(document: SpeakerDocument, vuid: str, ref_text: str = "text") -> SpeakerDocument:
    version = Version(vuid=vuid, name="Wren", source="audio", consent="c", ref_text=ref_text)
    added = changes.with_version(document, version, (), key="wren", life=document.marks.life, now=100)
    return following(document, added)


def history() -> list[SpeakerDocument]:
    """Return the revisions of a speaker: registered, a second version, an alias, deleted."""
    first = with_version(NOTHING, "v1")
    second = with_version(first, "v2")
    third = following(second, aliases.with_alias(second, "prod", "v1", ()))
    return [NOTHING, first, second, third, following(third, changes.deleted(third, now=100))]


def apply(view: SpeakerView, process: Generation, document: SpeakerDocument, **options: Any) -> None:
    etag = f"e{document.revision}"
    held = Held(WREN, document, etag, document.to_bytes())
    view.apply(held, generation=process.for_reading(), **options)


def revision(process: Generation) -> int | None:
    return SpeakerView(process).get([WREN], {})[0].revision


# Copies


def test_a_copy_is_what_was_applied_last_and_never_goes_back(world: World, valkey: ValkeyServer) -> None:
    """An apply that stood still for a day must not take a voice back, and readers get what they lack only."""
    process = world.process(valkey)
    view, revisions = SpeakerView(process), history()
    assert view.get([WREN], {})[0].revision is None
    for document in (revisions[2], revisions[1], revisions[2]):
        apply(view, process, document)
    [copy] = view.get([WREN], {})
    assert (copy.revision, copy.etag) == (2, "e2")
    assert SpeakerDocument.parse(copy.body) == revisions[2]
    assert view.get([WREN], {WREN: "e2"})[0].body is None
    assert view.get([WREN], {WREN: "e1"})[0].body == copy.body


def test_names_and_counts_are_what_documents_say(world: World, valkey: ValkeyServer) -> None:
    """A quota that counts a repeated apply twice would refuse uploads for nothing."""
    process = world.process(valkey)
    view = SpeakerView(process)
    for document in history()[1:]:
        apply(view, process, document)
        apply(view, process, document)
        assert view.usage("default") == document.counts
        assert view.names("default", limit=9) == (["wren"] if document.live else [])
    assert view.usage("elsewhere") == Counts(0, 0, 0)


def test_pinned_names_are_what_documents_say(world: World, valkey: ValkeyServer) -> None:
    """A voice that is missing among them would not be loaded first, and nobody would notice."""
    process = world.process(valkey)
    view, document = SpeakerView(process), NOTHING
    registered = with_version(NOTHING, "v1")
    for pinned in (True, False, True, None, True):
        about = document.about.having(pinned=bool(pinned))
        base = document if pinned is None else registered.having(about=about)
        changed = changes.deleted(base, now=100) if pinned is None else base
        document = changed.having(revision=document.revision + 1)
        apply(view, process, document)
        assert view.names("default", limit=9, pinned=True) == (["wren"] if pinned else [])


def test_a_voice_that_is_registered_counts_once(world: World, valkey: ValkeyServer) -> None:
    """Of voices that come at once, each counts the others before it, reserved or shown but never both."""
    process = world.process(valkey)
    view, robin, owl = SpeakerView(process), SpeakerId("default", "robin"), SpeakerId("default", "owl")
    assert view.reserve(WREN, "t1") == Counts(0, 0, 0)
    assert [view.reserve(one, "t2").voices for one in (robin, WREN, robin)] == [1, 1, 1]
    view.release(WREN, "t2")
    assert view.reserve(robin, "t3").voices == 1
    assert view.reserve(owl, "t1").voices == 2
    view.release(owl, "t1")
    registered = history()[1]
    apply(view, process, registered)
    assert view.reserve(robin, "t2") == registered.counts
    apply(view, process, changes.deleted(registered, now=100).having(revision=2))
    assert view.reserve(robin, "t2").voices == 1
    view.release(WREN, "t1")
    assert view.reserve(robin, "t2").voices == 0
    for token in ("t2", "t3"):
        assert view.reserve(owl, "t1").voices == 1
        view.release(robin, token)
    assert view.reserve(owl, "t1").voices == 0
    assert view.reserve(SpeakerId("elsewhere", "owl"), "t1").voices == 0


def test_copies_that_are_brought_up_together_are_each_whole(world: World, valkey: ValkeyServer) -> None:
    """A rebuild sends the documents in one piece. Characters of several bytes must not shift the next one."""
    process = world.process(valkey)
    view, generation = SpeakerView(process), process.for_reading()
    names = ["owl", "wren", "robin"]
    found = [
        packed(Held(SpeakerId("default", name), document, f"e{name}", document.to_bytes()))
        for name in names
        if (document := with_version(NOTHING, name * 3, ref_text="über " * len(name)))
    ]
    assert view.apply_each(found[1:], generation=generation) == []
    assert view.apply_each(found, generation=generation) == [one.speaker_id for one in found[1:]]
    copies = view.get([one.speaker_id for one in found], {})
    assert [(one.etag, one.body) for one in copies] == [(one.etag, one.body) for one in found]
    assert view.usage("default").voices == len(names)


def test_every_change_is_told_although_an_apply_was_lost(world: World, valkey: ValkeyServer) -> None:
    """Engines that wait for a version must not miss it because the process that made it died."""
    process = world.process(valkey)
    view, revisions = SpeakerView(process), history()
    apply(view, process, revisions[1])
    apply(view, process, revisions[3], base=revisions[2])  # the apply of the second revision was lost
    told = [event["what"] for _, event in process.redis.xrange(events_key(process.for_reading())) if event]
    assert told == ["voice.created", "version.created", "version.created", "alias.updated"]


def test_a_generation_is_named_in_the_bucket_before_it_begins(
    world: World, valkey: ValkeyServer, other: ValkeyServer
) -> None:
    """Otherwise a new view could miss a commit that was acknowledged while it was being filled."""
    writer = world.process(valkey)
    generation = writer.for_reading()
    beginner = world.process(other)
    begin = beginner._begin

    def observed(**arguments: Any) -> Any:
        with pytest.raises(Unavailable):
            writer.confirm(generation)
        return begin(**arguments)

    beginner._begin = observed  # type: ignore[assignment]
    beginner.check()


def test_an_ended_generation_is_neither_read_nor_written(world: World, valkey: ValkeyServer) -> None:
    """A change that is applied to a view that nobody reads must not be acknowledged."""
    process, another = world.process(valkey), world.process(valkey)
    view, revisions = SpeakerView(process), history()
    apply(view, process, revisions[1])
    ended = process.for_reading()
    process.plain.set(STAMP, "lost")
    process.plain.delete(STAMP)
    another.check()
    assert another.for_reading() != ended
    with pytest.raises(ViewAway):
        view.apply(Held(WREN, revisions[2], "e2", revisions[2].to_bytes()), generation=ended)
    assert revision(another) is None


# Losses


def test_an_emptied_redis_begins_another_generation(world: World, valkey: ValkeyServer) -> None:
    """A loss is noticed by the next read, which is answered all the same: the view then knows nothing."""
    process = world.process(valkey)
    apply(SpeakerView(process), process, history()[1])
    before = process.for_reading()
    process.plain.flushall()
    assert revision(process) is None
    assert process.for_reading() != before
    assert world.named.generation == process.for_reading()


def snapshot(server: ValkeyServer) -> dict[bytes, bytes]:
    with Redis.from_url(server.url) as client:
        return {key: client.dump(key) for key in client.scan_iter()}


def restore(server: ValkeyServer, kept: dict[bytes, bytes]) -> None:
    with Redis.from_url(server.url) as client:
        client.flushall()
        for key, value in kept.items():
            client.restore(key, 0, value)


def test_a_redis_that_was_rolled_back_is_not_believed(world: World, valkey: ValkeyServer) -> None:
    """A server that a snapshot was restored into, under one run, lacks the last word of every process."""
    process = world.process(valkey)
    view, revisions = SpeakerView(process), history()
    apply(view, process, revisions[1])
    before, kept = process.for_reading(), snapshot(valkey)
    process.check()
    apply(view, process, revisions[2])
    restore(valkey, kept)
    process.check()
    assert process.for_reading() != before
    assert revision(process) is None


@contextmanager
def refusing_writes(server: ValkeyServer) -> Iterator[None]:
    with Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


def test_a_redis_that_refuses_writes_is_believed_until_it_is_rolled_back(
    world: World, valkey: ValkeyServer
) -> None:
    """A process checks that its last word is still there, although it cannot replace the word. A process
    without a word could not notice a rollback, so it does not believe the server. A generation that is named
    meanwhile is kept until the server takes it.
    """
    process = world.process(valkey)
    apply(SpeakerView(process), process, history()[1])
    before, kept = process.for_reading(), snapshot(valkey)
    process.check()
    with refusing_writes(valkey):
        for _ in range(2):
            world.clock.ahead += 2 * UNWATCHED_SECONDS
            with pytest.raises(Unavailable, match="takes no writes"):
                process.check()
            assert revision(process) == 1
        with pytest.raises(Unavailable, match="takes no writes"):
            world.process(valkey).for_reading()
    restore(valkey, kept)
    named = set()
    with refusing_writes(valkey):
        for use in (process.check, process.check, process.for_reading):
            with pytest.raises(Unavailable, match="takes no writes"):
                use()
            named.add(world.named.generation)
    process.check()
    assert named == {process.for_reading()} != {before}


def test_data_that_were_copied_to_another_server_are_not_believed(
    world: World, valkey: ValkeyServer, other: ValkeyServer
) -> None:
    """A replica that took over may lack what was acknowledged last."""
    before = world.process(valkey).for_reading()
    restore(other, snapshot(valkey))
    assert world.process(other).for_reading() != before


def test_processes_that_start_together_use_one_generation(world: World, valkey: ValkeyServer) -> None:
    """A second process joins the view that the first one has begun."""
    first, second = world.process(valkey), world.process(valkey)
    assert first.for_reading() == second.for_reading() == world.named.generation


def test_a_redis_of_another_bucket_is_left_alone(world: World, valkey: ValkeyServer) -> None:
    """Two registries on one Redis would otherwise take it from each other with every look."""
    process = world.process(valkey)
    generation = process.for_reading()
    with pytest.raises(RedisTaken, match=r"another bucket.* delete the folder DATA/redis"):
        world.process(valkey, bucket="b/2").for_reading()
    process.check()
    assert process.for_reading() == generation


def test_reads_go_on_while_the_bucket_is_away(world: World, valkey: ValkeyServer) -> None:
    """A look that fails changes nothing. Only a look that names another generation forbids the view."""
    process = world.process(valkey)
    apply(SpeakerView(process), process, history()[1])
    world.store.away = True
    world.clock.ahead += 3 * REREAD_SECONDS
    process.check()
    assert revision(process) == 1
    with pytest.raises(Unavailable):
        process.confirm(process.for_reading())


def test_reads_do_not_wait_for_a_slow_bucket(
    world: World, valkey: ValkeyServer, other: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is like one that is away, but what it says in the end counts."""
    monkeypatch.setattr(view_document, "PATIENCE_SECONDS", 0.05)
    process = world.process(valkey)
    apply(SpeakerView(process), process, history()[1])
    world.store.answers = answers = Event()
    for _ in range(3):
        world.clock.ahead += UNWATCHED_SECONDS + 1
        assert revision(process) == 1
    world.store.answers = None
    world.process(other).for_reading()
    process.check()
    answers.set()

    def is_left_behind() -> bool:
        with suppress(LeftBehind):
            process.check()
            return False
        return True

    wait_until(is_left_behind)


def test_a_thread_that_cannot_be_started_is_like_a_bucket_that_is_away(
    world: World, valkey: ValkeyServer, other: ValkeyServer
) -> None:
    def refuse(_: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    def run(do: Callable[[], None]) -> None:
        starts.pop()(do)

    starts: list[Callable[[Callable[[], None]], None]] = [lambda do: do(), refuse]
    process = Generation(valkey.url, "b/1", world.documents, world.clock, run_in_background=run)
    process.for_reading()
    world.process(other).for_reading()
    world.clock.ahead += REREAD_SECONDS
    process.check()
    with pytest.raises(LeftBehind):
        process.check()
    process.close()


def test_what_takes_away_waits_until_every_reader_has_looked(world: World, valkey: ValkeyServer) -> None:
    """A deleted voice must not be served any more by a process that still reads the view of before."""
    process = world.process(valkey)
    process.for_reading()
    began = world.clock.since_boot()
    process.settle()
    assert world.clock.since_boot() - began == pytest.approx(SETTLED_SECONDS, abs=2)
    settled = world.clock.since_boot()
    process.settle()
    assert world.clock.since_boot() - settled < SETTLED_SECONDS / 2


# Left behind


def test_a_view_that_nobody_looked_at_is_looked_at_before_it_is_used(
    world: World, valkey: ValkeyServer, other: ValkeyServer
) -> None:
    """The thread that looks may be stuck in a process that goes on answering."""
    stuck = world.process(valkey)
    apply(SpeakerView(stuck), stuck, history()[1])
    world.process(other).for_reading()
    world.clock.ahead += UNWATCHED_SECONDS + 1
    with pytest.raises(LeftBehind):
        SpeakerView(stuck).get([WREN], {})
    with pytest.raises(LeftBehind):
        stuck.for_reading()


class CountingGeneration(Generation):
    looks = 0

    def _read_both(self) -> tuple[Named, Stamp, str]:
        self.looks += 1
        return super()._read_both()


@pytest.mark.parametrize("begins", ["before the read", "after it"])
def test_a_process_is_not_left_behind_while_another_begins_a_generation(
    world: World, valkey: ValkeyServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    """Operators would look for another Redis that there is not."""
    process, beginner = world.process(valkey), world.process(valkey)
    for one in (process, beginner):
        one.for_reading()
    redis_client.flushall()
    if begins == "before the read":  # it has read the stamp in Redis by then, and reads `_view.json` next
        read = process._document.read
        monkeypatch.setattr(process._document, "read", lambda: (beginner.check(), read())[1])
    else:  # the generation is named in the bucket, but not in Redis yet
        assert beginner._document.begin(world.named, "f" * 32)
        begun = Stamp(history_of(redis_client.info(*SECTIONS)), "b/1", "f" * 32)
        monkeypatch.setattr(world.clock, "sleep", lambda _: redis_client.set(STAMP, str(begun)))
    process.check()
    assert process.for_reading() == world.named.generation


def test_many_users_of_a_view_that_is_away_look_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looked, one after the other. One request for 500 voices kept all others waiting for a minute."""
    monkeypatch.setattr(generation_module, "_FAILED_CHECK_SECONDS", 3600)  # however slow this machine is
    with ValkeyServer(tmp_path / "redis") as server:
        process = world.process(server, CountingGeneration)
        assert isinstance(process, CountingGeneration)
        process.for_reading()
    world.clock.ahead += UNWATCHED_SECONDS + 1
    process.looks = 0
    for _ in range(50):
        with pytest.raises(Unavailable):
            process.for_reading()
    assert process.looks == 1
    with pytest.raises(Unavailable):
        process.check()
    assert process.looks == 2, "who watches looks in any case"
    world.clock.ahead += 3600
    with pytest.raises(Unavailable):
        process.for_reading()
    assert process.looks == 3


def test_a_look_that_succeeds_ends_the_failure(
    world: World, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_module, "_FAILED_CHECK_SECONDS", 3600)
    process = world.process(valkey)
    world.store.away = True
    with pytest.raises(Unavailable):
        process.for_reading()
    world.store.away = False
    with pytest.raises(Unavailable):
        process.for_reading()
    process.check()
    assert process.for_reading()


def test_a_process_that_is_left_behind_neither_reads_nor_begins(
    world: World, valkey: ValkeyServer, other: ValkeyServer
) -> None:
    """Two Redis by mistake end in one that serves and an alarm, not in turns of rebuilding."""
    behind = world.process(valkey)
    behind.for_reading()
    serving = world.process(other)
    generation = serving.for_reading()
    world.clock.ahead += REREAD_SECONDS
    for _ in range(3):
        with pytest.raises(LeftBehind, match="SPEAKER_REDIS_URL"):
            behind.check()
        with pytest.raises(ViewAway):
            SpeakerView(behind).get([WREN], {})
    assert world.named.generation == generation


def test_a_question_is_answered_by_whoever_serves(
    world: World, valkey: ValkeyServer, other: ValkeyServer
) -> None:
    """A process that is left behind asks after a while. While it is answered, it never begins."""
    behind, serving = world.process(valkey), world.process(other)
    behind.for_reading()
    generation = serving.for_reading()
    for _ in range(3):
        world.clock.ahead += SETTLED_SECONDS + 1
        with pytest.raises(LeftBehind):
            behind.check()
        world.clock.ahead += ASKED_SECONDS / 2
        serving.check()
    assert not world.named.question
    assert serving.for_reading() == generation


def test_a_question_that_nobody_answers_lets_the_asker_begin(
    world: World, valkey: ValkeyServer, other: ValkeyServer
) -> None:
    """After fail-overs nobody may be left who holds the generation that the bucket names."""
    behind = world.process(valkey)
    behind.for_reading()
    world.process(other).for_reading()  # and ends
    for _ in range(3):
        world.clock.ahead += SETTLED_SECONDS + 1
        with pytest.raises(LeftBehind):
            behind.check()
    assert world.named.question
    world.clock.ahead += ASKED_SECONDS
    behind.check()
    assert behind.for_reading() == world.named.generation


def test_a_damaged_view_document_is_replaced(world: World, valkey: ValkeyServer) -> None:
    """It holds nothing that cannot be made again, so it must not keep the registry from starting."""
    world.store.put(VIEW, b"{")
    generation = world.process(valkey).for_reading()
    assert unseal(world.store.get(VIEW))["generation"] == generation


def test_a_view_that_a_read_only_disk_cannot_name_is_refused_at_once(
    world: World, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request would wait until the disk takes writes again, and so would the probe of readiness."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(durable_folder, "_write", refuse)
    process, began = world.process(valkey), world.clock.since_boot()
    with pytest.raises(WritesRefused, match="can only be read, and takes no writes"):
        process.check()
    assert world.clock.since_boot() - began < 2
    monkeypatch.undo()
    process.check()
    assert process.for_reading()


@pytest.mark.parametrize("goes_away", ["before", "after"])
def test_a_view_of_which_the_bucket_does_not_say_whether_it_is_named_begins_later(
    world: World, valkey: ValkeyServer, redis_client: Redis, goes_away: str
) -> None:
    """No user of the view waits for the bucket for long, and the process does not take itself for left
    behind, although another generation than its last one may be named.
    """
    process = world.process(valkey)
    former = process.for_reading()
    redis_client.flushall()
    world.store.goes_away, began = goes_away, world.clock.since_boot()
    with pytest.raises(Unavailable, match="not known whether the change was made"):
        process.check()
    assert world.clock.since_boot() - began < 5
    world.store.away = False
    process.check()
    assert process.for_reading() == world.named.generation != former


# What is due, and what is open

ALL_OF_IT = OpenJob("v1", "ecapa", "f1", "job_1", processing=False)


def test_an_announced_write_is_looked_at_soon_and_stays_until_its_outcome_is_known(
    world: World, valkey: ValkeyServer
) -> None:
    """A delete that finds nothing has to know what may still land, however long that takes."""
    process = world.process(valkey)
    agenda = Agenda(process)
    agenda.announce(WREN, "t1", process.for_reading())
    agenda.announce(WREN, "t2", process.for_reading())
    assert agenda.due(9) == []
    agenda.withdraw(WREN, "t1")
    assert agenda.announced(WREN).keys() == {"t2"}
    assert agenda.announced(WREN)["t2"] < 60


def test_a_look_that_was_asked_for_during_another_one_stays(world: World, valkey: ValkeyServer) -> None:
    """What a process finds after it has begun to look belongs to the next look."""
    agenda = Agenda(world.process(valkey))
    agenda.check_within({WREN: 0})
    [due] = agenda.due(9)
    agenda.check_within({WREN: 30})
    agenda.checked(due, again_in=None)
    wait_until(lambda: agenda.due(9))  # it is due a millisecond after the one that was under way
    [again] = agenda.due(9)
    agenda.checked(again, again_in=60)
    assert agenda.due(9) == []
    agenda.check_within({WREN: -1})
    [soon] = agenda.due(9)
    agenda.checked(soon, again_in=None)
    assert agenda.due(9) == []


def test_a_job_is_joined_until_it_ends(world: World, valkey: ValkeyServer) -> None:
    """Nothing is extracted twice for nothing, and those who follow a job hear how it ended."""
    process = world.process(valkey)
    jobs, records, view = OpenJobs(process), JobRecords(process), SpeakerView(process)
    fields = {"id": "job_1", "ns": "default", "slug": "wren", "name": "Wren", "vuid": "v1", "number": "1"}
    fields |= {"profile": "ecapa", "fingerprint": "f1", "build": "1", "max_attempts": "3", "queue": "q"}
    assert jobs.claim(WREN, ALL_OF_IT, fields) == ALL_OF_IT
    assert jobs.claim(WREN, ALL_OF_IT, fields) == ALL_OF_IT
    rival = replace(ALL_OF_IT, job_id="job_2")
    assert jobs.claim(WREN, rival, fields | {"id": "job_2"}).job_id == "job_1"
    assert [jobs.begin(WREN, ALL_OF_IT, {"worker": "w"}) for _ in range(2)] == [1, 2]
    assert jobs.report(WREN, ALL_OF_IT, {"stage": "encoding"}, attempt=1) is None
    jobs.put_back(WREN, ALL_OF_IT, {"stage": "queued"}, attempt=1)
    assert jobs.report(WREN, ALL_OF_IT, {"stage": "encoding"}, attempt=2) == 2
    assert view.get([WREN], {})[0].open_jobs == (replace(ALL_OF_IT, processing=True),)
    record = records.get("default", "job_1")
    assert (record.state, record.attempt, record.worker, record.finished) == ("processing", 2, "w", False)
    jobs.put_back(WREN, ALL_OF_IT, {"stage": "queued"}, attempt=2)
    assert jobs.renew(WREN, replace(ALL_OF_IT, processing=True)) == 2
    assert view.get([WREN], {})[0].open_jobs == (ALL_OF_IT,)
    assert records.get("default", "job_1").state == "queued"
    assert jobs.end(WREN, ALL_OF_IT, "succeeded")
    assert not jobs.end(WREN, ALL_OF_IT, "failed")
    assert jobs.renew(WREN, ALL_OF_IT) is None
    record = records.get("default", "job_1")
    assert record.state == "succeeded"
    assert record.created_at <= (record.started_at or 0) <= (record.finished_at or 0)
    assert view.get([WREN], {})[0].open_jobs == ()
    stream = process.redis.xrange(events_key(process.for_reading()))
    told = [event["state"] for _, event in stream if event]
    assert told == ["queued", *["processing"] * 3, "queued", "succeeded"]
    with pytest.raises(JobNotFound):
        records.get("elsewhere", "job_1")


def test_a_claim_that_ran_out_is_taken_over(
    world: World, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that died must not keep an artifact from being made. Its late end takes nothing away."""
    process = world.process(valkey)
    jobs, records = OpenJobs(process), JobRecords(process)
    fields = {"id": "job_1", "ns": "default", "slug": "wren", "name": "Wren", "vuid": "v1", "number": "1"}
    fields |= {"profile": "ecapa", "fingerprint": "f1", "build": "1", "max_attempts": "3", "queue": "q"}
    monkeypatch.setattr(open_jobs, "_HELD", 60_000)
    jobs.claim(WREN, ALL_OF_IT, fields)
    key = open_jobs_key(process.for_reading(), WREN)
    process.redis.hset(key, "v1|ecapa|f1", "job_1:processing:1")
    assert SpeakerView(process).get([WREN], {})[0].open_jobs == ()
    rival = replace(ALL_OF_IT, job_id="job_2")
    assert jobs.claim(WREN, rival, fields | {"id": "job_2"}) == rival
    former = records.get("default", "job_1")
    assert (former.state, former.replaced) == ("superseded", True)
    assert not jobs.end(WREN, ALL_OF_IT, "succeeded")
    assert SpeakerView(process).get([WREN], {})[0].open_jobs == (rival,)


def test_jobs_are_listed_counted_and_forgotten(world: World, valkey: ValkeyServer) -> None:
    """Lists and sums come from sorted sets that every change of a job keeps in step."""
    process = world.process(valkey)
    jobs, records = OpenJobs(process), JobRecords(process)
    common = {
        "ns": "default",
        "slug": "wren",
        "name": "Wren",
        "vuid": "v1",
        "number": "1",
        "fingerprint": "f1",
    }
    common |= {"build": "1", "max_attempts": "3", "queue": "q"}
    made = [OpenJob("v1", profile, "f1", f"job_{profile}", processing=False) for profile in ("a", "b", "c")]
    for one in made:
        jobs.claim(WREN, one, {**common, "id": one.job_id, "profile": one.profile})
    jobs.begin(WREN, made[0], {})
    jobs.end(WREN, made[0], "succeeded")
    jobs.begin(WREN, made[1], {})
    assert [one.id for one in records.page("default", limit=2).found] == ["job_c", "job_b"]
    rest = records.page("default", after="job_b", limit=2)
    assert ([one.id for one in rest.found], rest.more) == (["job_a"], False)
    assert [one.id for one in records.page("default", state="processing", limit=9).found] == ["job_b"]
    assert records.page("default", slug="robin", limit=9).found == []
    assert records.page("elsewhere", limit=9).found == []
    now = records.get("default", "job_c").created_at + 1
    summary = records.summary("default", ["a", "b", "c", "d"])
    assert dict(summary.counts) == {
        **dict.fromkeys(dict(summary.counts), 0),
        "succeeded": 1,
        "processing": 1,
        "queued": 1,
    }
    assert [one.profile for one in summary.profiles] == ["a", "b", "c"]
    assert summary.rates[0].succeeded == 1
    assert records.counts("default", ["succeeded", "failed"], [now - 60, now]) == [[1], [0]]
    assert (records.forget_before("default", now), records.forget_before("default", now)) == (1, 0)
    assert [one.id for one in records.page("default", limit=9).found] == ["job_c", "job_b"]
    assert records.summary("default", ["a"]).profiles == []


def test_a_list_by_state_leaves_out_a_job_that_has_just_left_the_state(
    world: World, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of a list are read before the jobs, which may change in between. The page is filled up."""
    process = world.process(valkey)
    jobs, records = OpenJobs(process), JobRecords(process)
    fields = {"ns": "default", "slug": "wren", "name": "Wren", "vuid": "v1", "number": "1"}
    fields |= {"fingerprint": "f1", "build": "1", "max_attempts": "3", "queue": "q"}
    made = [OpenJob("v1", profile, "f1", f"job_{profile}", processing=False) for profile in ("a", "b", "c")]
    for one in made:
        jobs.claim(WREN, one, {**fields, "id": one.job_id, "profile": one.profile})
    read = records._read

    def read_late(job_ids: Any) -> Any:
        jobs.begin(WREN, made[1], {})
        return read(job_ids)

    monkeypatch.setattr(records, "_read", read_late)
    page = records.page("default", state="queued", limit=2)
    assert ([one.id for one in page.found], page.more) == (["job_c", "job_a"], False)


@pytest.mark.parametrize("rare", [1_000, 0])
def test_jobs_of_a_profile_are_listed_by_their_creation(
    world: World, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch, rare: int
) -> None:
    """Of a rare profile no other job is examined, however many there are, and the order is the same."""
    process = world.process(valkey)
    jobs, records = OpenJobs(process), JobRecords(process)
    monkeypatch.setattr(job_records, "_RARE", rare)
    fields = {"ns": "default", "slug": "wren", "name": "Wren", "vuid": "v1", "number": "1"}
    fields |= {"build": "1", "max_attempts": "3", "queue": "q"}
    for number, profile in enumerate(("a", "b", "b", "a", "a", "b", "b", "a")):
        one = OpenJob("v1", profile, f"f{number}", f"job_{number}", processing=False)
        jobs.claim(
            WREN, one, {**fields, "id": one.job_id, "profile": profile, "fingerprint": one.fingerprint}
        )
    for number in (4, 0, 3):  # the oldest is not the first to end
        one = OpenJob("v1", "a", f"f{number}", f"job_{number}", processing=False)
        jobs.end(WREN, one, "failed" if number else "succeeded")

    def listed(**given: Any) -> tuple[list[str], bool]:
        page = records.page("default", profile="a", **given)
        return [one.id for one in page.found], page.more

    if rare:
        monkeypatch.setattr(job_records, "_SCANNED", 4)
    assert listed(limit=9) == (["job_7", "job_4", "job_3", "job_0"], False)
    assert listed(limit=2) == (["job_7", "job_4"], True)
    assert listed(limit=2, after="job_4") == (["job_3", "job_0"], False)
    assert listed(limit=9, state="failed") == (["job_4", "job_3"], False)
    assert listed(limit=1, state="failed", after="job_4") == (["job_3"], False)
    assert listed(limit=9, state="canceled") == ([], False)


def test_a_view_is_complete_once_it_is_said(world: World, valkey: ValkeyServer) -> None:
    """Lists must not pass for whole while documents are still being applied."""
    process = world.process(valkey)
    view = SpeakerView(process)
    assert not view.is_complete()
    view.complete(process.for_reading())
    assert view.is_complete()
