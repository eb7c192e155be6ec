"""Tests in which any call to bucket, Redis or queue fails, before or after it took effect, or is repeated:
the first, the second, … until an operation makes no more. What was served stays, and housekeeping does what
is left to do.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count

import numpy as np
import pytest

from services.registry_api.operations.artifact_upload import ReadyArtifact
from speaker_registry.errors import Conflict, Unavailable, VoiceNotFound
from tests.integration.storage import (
    FINGERPRINT,
    NAMESPACE,
    NEXT_FINGERPRINT,
    PROFILE,
    WIDER,
    Border,
    Storage,
    speaker_id,
)

pytestmark = pytest.mark.parametrize("way", Border.WAYS)
retried = pytest.mark.parametrize("retry", [True, False], ids=["retried", "given-up"])


class Trials:
    """The same operation on one voice after another, with another call failing each time."""

    def __init__(self, storage: Storage, way: str) -> None:
        self._storage = storage
        self._way = way
        self.names: list[str] = []

    def __iter__(self) -> Iterator[str]:
        """Yield names of voices until an operation made fewer calls."""
        self._over = False
        for number in count(1):
            if self._over:
                assert number > 3, "the operation makes no calls"
                return
            assert number < 100, "each trial makes more calls than the one before"
            self.names.append(f"voice-{number}")
            yield self.names[-1]

    def failed(self, operation: Callable[[], object]) -> bool:
        """Return whether the caller learned of the failure."""
        with self._storage.border.failing(len(self.names), self._way) as reached:
            try:
                operation()
            except Unavailable:
                return True
            self._over = not reached()
            return False


@retried
@pytest.mark.parametrize("kind", ["clip", "embedding"])
def test_a_first_upload_is_stored_whole_or_not_at_all(storage: Storage, kind: str, retry: bool, way: str):
    """A first upload is stored whole or not at all, whichever call fails."""
    upload = storage.register if kind == "clip" else storage.register_embedding
    trials = Trials(storage, way)
    for name in trials:
        if trials.failed(partial(upload, name, idempotency_key="k")) and retry:
            assert upload(name, idempotency_key="k").version.number == 1
    storage.settle()
    storage.sweep()
    for name in trials.names:
        storage.check_settled(name)
        assert storage.served(name) or not (retry or storage.objects(name)), name


@retried
def test_another_upload_changes_nothing_until_it_is_whole(storage: Storage, retry: bool, way: str):
    """Another upload changes nothing until it is whole: callers that are served version 1 get it until
    version 2 is whole.
    """
    trials = Trials(storage, way)
    for name in trials:
        storage.ready(name)
        before = storage.served(name)
        upload = partial(storage.register, name, number=2, idempotency_key="k")
        failed = trials.failed(upload)
        assert storage.served(name) == before
        if failed and retry:
            assert upload().version.number == 2
    storage.settle()
    storage.sweep()
    for name in trials.names:
        storage.check_settled(name)
        versions = storage.truth(name).versions
        assert [version.number for version in versions] == ([1, 2] if retry else [1, 2][: len(versions)])
        assert storage.served(name)[0] == len(versions)
        assert data_of(storage, name) == 4 * len(versions), "two blobs, an artifact's bytes and its fact"


def data_of(storage: Storage, name: str) -> int:
    """Return how many objects are no records."""
    return len([key for key in storage.objects(name) if "/d/" in key])


@retried
def test_a_delete_leaves_a_voice_as_it_was_or_gone(storage: Storage, retry: bool, way: str):
    """A delete leaves a voice as it was or gone: until it is acknowledged the voice may be either, and after
    that it is gone.
    """
    trials = Trials(storage, way)
    works = []
    for name in trials:
        storage.ready(name)
        before = storage.served(name)
        storage.register(name, number=2)
        works += storage.take(name)
        failed = trials.failed(partial(storage.operations.deletions.delete, NAMESPACE, name))
        assert storage.served(name) in ({before, None} if failed else {None})
        if failed and retry:
            delete_or_be_told_that_it_is_gone(storage, name)
    for work in works:
        storage.publish(work)
    storage.settle()
    storage.sweep()
    for name in trials.names:
        storage.check_settled(name)
        if retry:
            assert storage.served(name) is None
        if storage.served(name) is None:
            assert data_of(storage, name) == 0


def delete_or_be_told_that_it_is_gone(storage: Storage, name: str) -> None:
    try:
        storage.delete(name)
    except VoiceNotFound:
        assert storage.served(name) is None


@retried
def test_an_artifact_that_was_served_never_changes(storage: Storage, retry: bool, way: str):
    """An artifact that was served never changes, although its worker got no answer and made another."""
    trials = Trials(storage, way)
    seen = {}
    for name in trials:
        storage.ready(name)
        before = storage.served(name)
        storage.register(name, number=2)
        (work,) = storage.take(name)
        failed = trials.failed(partial(storage.publish, work))
        seen[name] = storage.served(name)
        assert seen[name] == before or seen[name][0] == 2
        if failed and retry:
            storage.finish_all(name)
            assert storage.served(name)[0] == 2
    storage.settle()
    storage.sweep()
    for name in trials.names:
        storage.check_settled(name)
        number, digest = storage.served(name)
        assert number == 2
        assert seen[name] == (number, digest) or seen[name][0] == 1
        assert data_of(storage, name) == 8, "nothing is left of attempts that lost"


@retried
def test_an_artifact_that_is_brought_takes_the_others_place_or_does_not(
    storage: Storage, retry: bool, way: str
):
    """An uploaded artifact replaces the one that was served, or changes nothing. Until then the old one is
    served, and no caller gets a mixture of the two.
    """
    trials = Trials(storage, way)
    seen = {}
    for name in trials:
        storage.ready(name)
        storage.settle()
        before = storage.served(name)
        version = storage.speaker(name).newest
        (given,) = [one for one in version.artifacts.values() if one.profile == PROFILE]
        bring = partial(
            storage.operations.uploads.store,
            speaker_id(name),
            version,
            PROFILE,
            brought(given.fingerprint),
        )
        failed = trials.failed(bring)
        seen[name] = storage.served(name)
        assert seen[name] == before if failed and way == "not-done" else True
        assert failed or seen[name] != before
        if failed and retry:
            with suppress(Conflict):  # the first try got through after all
                bring()
            assert storage.served(name) != before
    storage.settle()
    storage.sweep()
    for name in trials.names:
        storage.check_settled(name)
        assert storage.served(name) is not None


def brought(fingerprint: str) -> ReadyArtifact:
    tensors = {"speaker_embedding": np.full(1024, 0.75, np.float32), "ref_code": np.ones((15, 16), np.int32)}
    return ReadyArtifact(tensors=tensors, fingerprint=fingerprint)


def test_a_job_whose_taking_failed_is_taken_again(storage: Storage, way: str):
    """A job whose taking failed is taken again, because the queue delivers it again."""
    trials = Trials(storage, way)
    for name in trials:
        storage.register(name)
        trials.failed(partial(storage.take, name))
    storage.settle()
    for name in trials.names:
        storage.check_settled(name)
        assert storage.served(name)


@retried
def test_an_extraction_that_is_given_up_ends(storage: Storage, retry: bool, way: str):
    """An extraction that is given up ends. A clip that can never be extracted is recorded as failed once, or
    the failure is found again.
    """
    trials = Trials(storage, way)
    for name in trials:
        storage.register(name)
        (work,) = storage.take(name)
        give_up = partial(storage.publisher.fail, work, VoiceNotFound("broken"))
        if trials.failed(give_up) and retry:
            give_up()
    storage.settle()
    for name in trials.names:
        indexed = storage.operations.speakers.find(NAMESPACE, name)
        assert indexed.pending_extractions == ()
        assert storage.jobs(name, open_only=True) == []
        assert indexed.speaker == storage.truth(name)
        state = storage.operations.statuses.state(indexed, indexed.speaker.newest)
        assert state == "failed" or (state == "ready" and not retry)


@retried
def test_a_forced_extraction_leaves_what_is_served(storage: Storage, retry: bool, way: str):
    """A forced extraction leaves what is served: the existing artifact is served until
    the new build is ready.
    """
    trials = Trials(storage, way)
    before = {}
    for name in trials:
        version = storage.ready(name).version
        storage.settle()  # otherwise housekeeping would look after this voice anyway
        before[name] = storage.served(name)
        force = partial(
            storage.operations.extractions.ensure, speaker_id(name), version, [PROFILE], force=True
        )
        failed = trials.failed(force)
        assert storage.served(name) == before[name]
        if failed and retry:
            force()
        if not failed:
            storage.finish_all(name)
            assert storage.served(name) != before[name], "without any housekeeping"
    storage.settle()
    for name in trials.names:
        storage.check_settled(name)
        if retry:
            assert storage.served(name) not in (before[name], None)


def test_housekeeping_finishes_what_it_left_half_done(storage: Storage, way: str):
    """Housekeeping finishes what it left half done. Everything else is repaired by it, so its next turn has
    to do what this one did not.
    """
    trials = Trials(storage, way)
    for name in trials:
        storage.ready(name)
        before = storage.served(name)
        storage.register(name, number=2)
        lose_jobs(storage)
        trials.failed(partial(storage.housekeeper.repairs.repair, speaker_id(name)))
        assert storage.served(name) == before
    storage.settle()
    for name in trials.names:
        storage.check_settled(name)
        assert storage.served(name)[0] == 2


def lose_jobs(storage: Storage) -> None:
    """Remove RQ's jobs, but not our record of them."""
    for key in storage.raw.scan_iter("rq:*"):
        storage.raw.delete(key)


def test_a_sweep_takes_what_the_last_one_left(storage: Storage, way: str):
    """A sweep collects what the last one left. Objects that a failed sweep did not reach are garbage for the
    next one.
    """
    trials = Trials(storage, way)
    for name in trials:
        storage.ready(name)
        storage.delete(name)
        trials.failed(partial(storage.housekeeper.garbage.collect, speaker_id(name)))
        assert storage.served(name) is None
    storage.sweep()
    for name in trials.names:
        storage.check_settled(name)
        assert len(storage.objects(name)) == 1, "the tombstone"


def test_a_rebuild_that_failed_goes_on(storage: Storage, way: str):
    """A rebuild that failed is continued. A voice that is not admitted yet is admitted
    when a caller needs it.
    """
    storage.ready("alice")
    storage.ready("bob")
    storage.delete("bob")
    before = storage.served("alice")
    trials = Trials(storage, way)
    for _ in trials:
        storage.clock.sleep(4)
        storage.raw.flushall()
        storage.index.redis.connection_pool.disconnect()
        trials.failed(storage.housekeeper.rebuild)
        assert storage.served("alice") == before
        assert storage.served("bob") is None
        storage.settle()
        assert storage.index.complete()
        storage.check_settled("alice")
        storage.check_settled("bob")
        assert storage.index.names(NAMESPACE, limit=9) == ["alice"]
    assert storage.served("alice") == before


@pytest.mark.slow
def test_a_new_fingerprint_reaches_every_voice(storage: Storage, way: str):
    """A new fingerprint reaches every voice. A worker that failed to announce it, for the first or the second
    of its profiles, announces it again at its next start. Each trial has a voice that was never extracted
    with the new fingerprint, and one that was in the trial before. Older ones are deleted: to extract all of
    them anew in each trial would take minutes.
    """
    announce = partial(storage.announce, NEXT_FINGERPRINT, [WIDER, PROFILE])
    trials = Trials(storage, way)
    for name in trials:
        forget_encoders(storage)
        storage.announce(FINGERPRINT, [WIDER, PROFILE])
        storage.ready(name)
        storage.settle()
        before = storage.served(name)
        if trials.failed(announce):
            announce()
        storage.settle()
        for one in trials.names[-2:]:
            storage.check_settled(one)
            assert storage.served(one)
        assert storage.served(name) != before
        for one in trials.names[-2:-1]:
            storage.delete(one)
        storage.settle()


def forget_encoders(storage: Storage) -> None:
    """Delete the documents of profiles. Each trial makes as many calls as the one before only if the history
    is as long.
    """
    paths = [stored.key for stored in storage.store.list("_profiles/").objects]
    storage.store.delete(paths)
    storage.parts.shared.copies.forget(paths)
    storage.raw.delete("sr:profiles")
    storage.parts.profile_records.look_anew()
    storage.parts.profile_records._told.clear()
