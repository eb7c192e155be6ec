"""Tests in which any call to the store, Redis or the queue goes wrong, before or after it took effect: the
first, the second, … until an operation makes no more. What was acknowledged or served stays, a repeat
succeeds, and housekeeping does what is left to do.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count

import numpy as np
import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance import garbage_sweep
from services.registry_api.maintenance import settle as settle_module
from services.registry_api.maintenance.erase import erase
from services.registry_api.maintenance.settle import settle
from services.registry_api.operations.bring import ReadyArtifact, Room, bring
from services.registry_api.operations.cancel import cancel
from services.registry_api.operations.sources import EmbeddingSource
from services.shared.registry.extract import extract
from services.shared.registry.fail import fail
from services.shared.registry.publish import Attempt
from services.shared.view import generation as generation_module
from services.shared.view import redis_access
from services.shared.view.view_document import REREAD_SECONDS
from speaker_registry.errors import Conflict, InvalidAudio, JobFinished, Unavailable, VoiceNotFound
from tests.encoders import make_current
from tests.failing_calls import WAYS, FailingRegistry
from tests.opened_registry import NS, id_of

PROFILE = "qwen3-tts-0.6b"
NEXT = "sha256:" + "2" * 64

in_every_way = pytest.mark.parametrize("way", WAYS)
in_every_way_and_repeated_or_not = pytest.mark.parametrize(
    ("way", "repeats"),
    [(way, repeats) for way in WAYS for repeats in (True, False) if way != "done-twice" or not repeats],
    ids=lambda value: value if isinstance(value, str) else "repeated" if value else "given up",
)


@pytest.fixture
def registry(
    valkey: ValkeyServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FailingRegistry]:
    monkeypatch.setattr(settle_module, "ANNOUNCED_SECONDS", -1.0)  # nothing is ever under way between steps
    monkeypatch.setattr(
        generation_module, "_FAILED_CHECK_SECONDS", 0.0
    )  # the next call finds the server again
    monkeypatch.setattr(redis_access, "SUSPECT_SECONDS", 60.0)  # a busy machine makes no call fail
    with closing(FailingRegistry(valkey.url)) as registry:
        yield registry


class Trials:
    """The same operation on one voice after another, with another call going wrong each time."""

    def __init__(self, registry: FailingRegistry, way: str) -> None:
        self._registry = registry
        self._way = way
        self.names: list[str] = []

    def __iter__(self) -> Iterator[str]:
        """Yield names of voices until an operation made fewer calls."""
        self._over = False
        for number in count(1):
            if self._over:
                assert number > 3, "the operation makes hardly any calls"
                return
            assert number < 100, "each trial makes more calls than the one before"
            self.names.append(f"voice-{number}")
            yield self.names[-1]

    def failed(self, operation: Callable[[], object]) -> bool:
        """Return whether the caller learned of the failure."""
        with self._registry.border.failing(len(self.names), self._way) as reached:
            try:
                operation()
            except Unavailable:
                return True
            finally:
                self._over = not reached()
        return False

    def finish(self) -> None:
        """Let housekeeping and workers do what is left to do, and check every voice."""
        self._registry.settle(*self.names)
        for name in self.names:
            self._registry.sweep(name)
            self._registry.check_settled(name)
        self._registry.check_sums()


def take(registry: FailingRegistry, name: str) -> Attempt:
    """Begin the open job of a voice."""
    [job] = registry.find(name).open_jobs
    attempt = registry.worker.take(id_of(name), job.job_id, job.profile)
    assert attempt is not None
    return attempt


@in_every_way_and_repeated_or_not
@pytest.mark.parametrize("kind", ["clip", "embedding"])
def test_a_first_upload_is_stored_whole_or_not_at_all(
    registry: FailingRegistry, kind: str, way: str, *, repeats: bool
) -> None:
    """An upload that failed is registered as a whole or leaves nothing, and its repeat finds what it did."""
    profiles, trials = registry.opened.profiles.required, Trials(registry, way)
    embedding = np.full(profiles[0].embedding_width or 1, 0.25, np.float32)

    def upload(name: str) -> int:
        source = EmbeddingSource(embedding, profiles, registry.opened.clock.new_id)
        given = source if kind == "embedding" else None
        return registry.register(name, source=given, idempotency_key="k").version.number

    for name in trials:
        if trials.failed(partial(upload, name)) and repeats:
            assert upload(name) == 1
    trials.finish()
    for name in trials.names:
        document = registry.document(name)
        assert [one.number for one in document.versions] == [1] or not repeats
        assert document.live or registry.files(name) == []


@in_every_way_and_repeated_or_not
def test_another_upload_changes_nothing_until_it_is_whole(
    registry: FailingRegistry, way: str, *, repeats: bool
) -> None:
    """Callers that are served version 1 get it until version 2 is whole, and there is no third."""
    trials = Trials(registry, way)
    for name in trials:
        registry.make_ready(name)
        before = registry.served(name)
        upload = partial(registry.register, name, 2000, idempotency_key="k")
        failed = trials.failed(upload)
        assert registry.served(name) == before
        if failed and repeats:
            assert upload().version.number == 2
    trials.finish()
    for name in trials.names:
        numbers = [one.number for one in registry.document(name).versions]
        assert numbers == [1, 2] or (numbers == [1] and not repeats)
        assert number_of(registry.served(name)) == numbers[-1]


def number_of(served: tuple[int, str] | None) -> int:
    assert served is not None
    return served[0]


@in_every_way_and_repeated_or_not
def test_a_delete_leaves_a_voice_as_it_was_or_gone(
    registry: FailingRegistry, way: str, *, repeats: bool
) -> None:
    """Until a delete is acknowledged the voice may be either, and after that it stays gone, whatever a worker
    has still to publish.
    """
    trials, late, gone = Trials(registry, way), list[Attempt](), set[str]()
    for name in trials:
        registry.make_ready(name)
        before = registry.served(name)
        registry.register(name, 2000)
        late.append(take(registry, name))
        failed = trials.failed(partial(registry.delete, name))
        assert registry.served(name) in ((before, None) if failed else (None,))
        if failed and repeats:
            with suppress(VoiceNotFound):  # the first one was carried out
                registry.delete(name)
        if repeats or not failed:
            gone.add(name)
    for attempt in late:
        registry.worker.publish(attempt)
    trials.finish()
    for name in trials.names:
        left = registry.served(name)
        assert (left is None and registry.files(name) == []) or (name not in gone and number_of(left) == 2)
        assert registry.register(name, 3000).version.number == 3


@in_every_way_and_repeated_or_not
def test_an_artifact_that_was_served_never_changes(
    registry: FailingRegistry, way: str, *, repeats: bool
) -> None:
    """A worker that got no answer publishes again, or another one makes the artifact once more."""
    trials, seen = Trials(registry, way), {}
    for name in trials:
        registry.make_ready(name)
        before = registry.served(name)
        registry.register(name, 2000)
        publish = partial(registry.worker.publish, take(registry, name))
        failed = trials.failed(publish)
        seen[name] = registry.served(name)
        assert seen[name] == before or number_of(seen[name]) == 2
        if failed and repeats:
            assert publish()
        if repeats or not failed:
            assert number_of(registry.served(name)) == 2
    trials.finish()
    for name in trials.names:
        served = registry.served(name)
        assert number_of(served) == 2
        assert seen[name] == served or number_of(seen[name]) == 1


@in_every_way_and_repeated_or_not
def test_an_artifact_that_is_brought_takes_the_others_place_or_does_not(
    registry: FailingRegistry, way: str, *, repeats: bool
) -> None:
    """Until an uploaded artifact replaces the one that was served, that one is served."""
    trials = Trials(registry, way)
    for name in trials:
        registry.make_ready(name)
        before = registry.served(name)
        store = partial(bring_to, registry, name)
        failed = trials.failed(store)
        after = registry.served(name)
        assert failed or after != before
        if failed and repeats:
            with suppress(Conflict):  # the first one was carried out
                store()
            assert registry.served(name) != before
            assert after in (before, registry.served(name))
    trials.finish()
    for name in trials.names:
        assert registry.served(name) is not None


def bring_to(registry: FailingRegistry, name: str) -> bool:
    speaker = registry.find(name)
    tensors = {"speaker_embedding": np.full(1024, 0.75, np.float32), "ref_code": np.ones((12, 16), np.int32)}
    return bring(
        registry.speakers,
        registry.opened.blobs,
        registry.opened.profiles,
        room=Room(builds=9, bytes=10**12),
        speaker=speaker,
        version=speaker.document.newest,
        profile=PROFILE,
        given=ReadyArtifact(tensors=tensors, fingerprint=registry.worker.fingerprint),
        by="key",
    ).new


@in_every_way
def test_a_job_whose_taking_failed_is_taken_again(registry: FailingRegistry, way: str) -> None:
    """The queue delivers the job again."""
    trials = Trials(registry, way)
    for name in trials:
        registry.register(name)
        [job] = registry.find(name).open_jobs
        trials.failed(partial(registry.worker.take, id_of(name), job.job_id, job.profile))
    trials.finish()
    for name in trials.names:
        assert number_of(registry.served(name)) == 1


@in_every_way_and_repeated_or_not
def test_an_extraction_that_is_given_up_ends(registry: FailingRegistry, way: str, *, repeats: bool) -> None:
    """A clip that can never be extracted is recorded as failed, or the worker finds that out once more."""
    trials = Trials(registry, way)
    for name in trials:
        registry.register(name)
        nouns = (registry.speakers, registry.jobs, registry.opened.profiles, take(registry, name))
        give_up = partial(fail, *nouns, InvalidAudio("broken"))
        if trials.failed(give_up) and repeats:
            give_up()
    registry.settle(*trials.names)
    for name in trials.names:
        found = registry.find(name)
        state = registry.opened.profiles.state(found, found.document.newest)
        assert state == "failed" or (state == "ready" and not repeats)
        assert (found.document, found.open_jobs) == (registry.document(name), ())


@in_every_way_and_repeated_or_not
def test_a_job_is_canceled_or_is_not(registry: FailingRegistry, way: str, *, repeats: bool) -> None:
    """What its worker publishes after an acknowledged cancellation does not count, and nothing starts it."""
    trials = Trials(registry, way)
    for name in trials:
        registry.register(name)
        attempt = take(registry, name)
        nouns = (registry.speakers, registry.jobs, registry.opened.profiles, NS, attempt.job_id)
        stop = partial(cancel, *nouns, by="key", is_operator=False)
        failed = trials.failed(stop)
        if failed and repeats:
            assert stop().state == "canceled"
        published = registry.worker.publish(attempt)
        assert not published or (failed and not repeats)
        with suppress(JobFinished):
            assert stop().state == "canceled"
        assert (registry.served(name) is not None) == published
    registry.settle(*trials.names)
    for name in trials.names:
        found = registry.find(name)
        assert (found.document, found.open_jobs) == (registry.document(name), ())
        assert registry.opened.profiles.state(found, found.document.newest) in {"failed", "ready"}


@in_every_way_and_repeated_or_not
def test_a_forced_extraction_leaves_what_is_served(
    registry: FailingRegistry, way: str, *, repeats: bool
) -> None:
    """The artifact that is there is served until the new build is ready."""
    trials, before = Trials(registry, way), {}
    for name in trials:
        registry.make_ready(name)
        before[name] = registry.served(name)

        def force(name: str = name) -> None:
            speaker = registry.find(name)
            nouns = (registry.jobs, registry.opened.profiles, speaker, speaker.document.newest)
            extract(*nouns, [PROFILE], force=True)

        failed = trials.failed(force)
        assert registry.served(name) == before[name]
        if failed and repeats:
            force()
        if not failed:
            registry.work(name)
            assert registry.served(name) != before[name], "without any housekeeping"
    trials.finish()
    for name in trials.names:
        assert registry.served(name) != before[name] or not repeats


@in_every_way
def test_housekeeping_finishes_what_it_left_half_done(registry: FailingRegistry, way: str) -> None:
    """Everything else is repaired by housekeeping, so its next look has to do what this one did not."""
    trials = Trials(registry, way)
    for name in trials:
        registry.make_ready(name)
        before = registry.served(name)
        registry.register(name, 2000)
        registry.speakers.agenda.announce(id_of(name), "0" * 32, registry.opened.generation.for_reading())
        for key in registry.redis.scan_iter("rq:*"):
            registry.redis.delete(key)
        nouns = (registry.speakers, registry.jobs, registry.opened.profiles, id_of(name))
        trials.failed(partial(settle, *nouns))
        assert registry.served(name) == before
    trials.finish()
    for name in trials.names:
        assert number_of(registry.served(name)) == 2


@in_every_way
def test_a_sweep_takes_what_the_last_one_left(registry: FailingRegistry, way: str) -> None:
    """Objects that a failed sweep did not reach are garbage for the next one, and nothing else is."""
    trials = Trials(registry, way)
    for name in trials:
        registry.make_ready(name)
        before = registry.served(name)
        for number in range(2):
            registry.opened.blobs.store_upload(id_of(name), f"{number:032x}", b"left")
        registry.pass_time(86_400)
        trials.failed(partial(garbage_sweep.sweep, registry.speakers, registry.opened.blobs, id_of(name)))
        assert registry.served(name) == before
    trials.finish()


@in_every_way
def test_an_erasure_that_failed_is_finished(registry: FailingRegistry, way: str) -> None:
    """No byte of a deleted person is left, and the numbers of the name stay used."""
    trials, grace = Trials(registry, way), garbage_sweep.OLD
    for name in trials:
        registry.make_ready(name)
        registry.delete(name)
        registry.pass_time(2 * grace.total_seconds())
        trials.failed(partial(erase, registry.speakers, registry.opened.blobs, id_of(name), grace=grace))
        assert registry.served(name) is None
    trials.finish()
    for name in trials.names:
        assert registry.files(name) == []
        assert (registry.document(name).key, registry.document(name).marks.number) == (None, 1)


@in_every_way
def test_a_rebuild_that_failed_goes_on(registry: FailingRegistry, way: str) -> None:
    """A voice that the view lacks is read from the bucket, and the next rebuild does the rest."""
    registry.make_ready("alice", "bob")
    registry.delete("bob")
    before = registry.served("alice")
    trials = Trials(registry, way)
    for _ in trials:
        registry.redis.flushall()
        trials.failed(registry.keeper.rebuild)
        assert registry.served("alice") == before
        with suppress(Unavailable):  # the rebuild was complete
            assert registry.keeper.rebuild() <= 2
        assert registry.view.is_complete()
        registry.check_sums()
        assert registry.find("bob").document == registry.document("bob")


@in_every_way
def test_a_new_encoder_reaches_every_voice(registry: FailingRegistry, way: str) -> None:
    """A worker that failed to announce its encoder announces it again at its next start."""
    trials, records = Trials(registry, way), registry.opened.profile_records
    registry.make_ready("alice")
    for number, _ in enumerate(trials):
        before = registry.served("alice")
        fingerprint = f"sha256:{number:064}"
        announce = partial(make_current, records, PROFILE, fingerprint, {"model": "made up"})
        if trials.failed(announce):
            assert registry.served("alice") == before
            announce()
        records.clear_cache()
        assert records.fingerprint(PROFILE) == fingerprint
        registry.worker.fingerprint = fingerprint
        registry.settle("alice")
        registry.sweep("alice")
        registry.check_settled("alice")
        assert registry.served("alice") not in (before, None)


@in_every_way
def test_a_look_that_fails_ends_no_generation(registry: FailingRegistry, way: str) -> None:
    """Another one would cost a rebuild, and each lost connection might be the reason."""
    generation, trials = registry.opened.generation, Trials(registry, way)
    before = generation.for_reading()
    for _ in trials:
        registry.pass_time(REREAD_SECONDS)  # _view.json is due as well
        trials.failed(generation.check)
        generation.check()
        assert generation.for_reading() == before
