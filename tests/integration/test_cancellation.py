"""Tests of canceling jobs, on a real Valkey, RQ's queues and a real local folder. What is canceled stays
canceled, and what was served is still served.
"""

from contextlib import suppress
from pathlib import Path

import pytest

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance.sweep import ask_for_sweep
from services.registry_api.operations.cancellation import cancel
from services.shared.bucket.store import ObjectUnavailable
from services.shared.index.speaker_index import DIRTY
from speaker_registry.errors import JobFinished, JobNotFound, Unavailable, VoiceUnreadable
from tests.integration.storage import (
    NAMESPACE,
    NEXT_FINGERPRINT,
    PROFILE,
    Border,
    Storage,
    speaker_id,
)


def job_of(storage: Storage, name: str) -> str:
    """Return the open job."""
    (job,) = storage.jobs(name, open_only=True)
    return job.id


def profile_status(storage: Storage, name: str, number: int = 1) -> tuple[str, str | None]:
    indexed = storage.index.load(speaker_id(name))
    version = next(one for one in indexed.speaker.versions if one.number == number)
    found = storage.operations.statuses.of_profile(indexed, version, PROFILE)
    return found.state, found.error and found.error.partition(":")[0]


def extract(storage: Storage, name: str, *, force: bool = False) -> str | None:
    version = storage.index.load(speaker_id(name)).speaker.default
    claims = storage.operations.extractions.ensure(speaker_id(name), version, [PROFILE], force=force)
    return claims[PROFILE].job_id


def test_a_job_that_waits_is_canceled_and_gone_from_the_queue(storage: Storage):
    """A waiting job that is canceled leaves the queue, and no worker ever sees it."""
    storage.register("alice")
    job_id = job_of(storage, "alice")
    assert cancel(storage.parts, NAMESPACE, job_id).state == "canceled"
    assert storage.parts.dispatcher.state(job_id, PROFILE) == "gone"
    assert storage.raw.llen(f"rq:queue:extract.{PROFILE}") == 0
    assert storage.take() == []
    assert profile_status(storage, "alice") == ("failed", "canceled")


def test_it_is_not_said_to_be_canceled_while_its_version_cannot_be_read(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """A job is not reported as canceled while its version cannot be read. A Redis that was rolled back knows
    the job, but a worker that is running it would publish all the same.
    """
    storage.register("alice")
    job_id = job_of(storage, "alice")
    key, get = f"sr:job:{job_id}", storage.store.get
    record = storage.raw.dump(key)

    def refuse_versions(wanted: str) -> bytes:
        if ".ver." in wanted:
            raise ObjectUnavailable("archived")
        return get(wanted)

    storage.raw.flushall()
    storage.raw.restore(key, 0, record)
    with monkeypatch.context() as refusing:
        refusing.setattr(storage.store, "get", refuse_versions)
        storage.housekeeper.rebuild()
        with pytest.raises(VoiceUnreadable):
            cancel(storage.parts, NAMESPACE, job_id)
    assert storage.raw.hget(key, "state") in {b"queued", "queued"}


def test_housekeeping_does_not_start_it_again(storage: Storage):
    """Housekeeping does not start a canceled job again. The profile is required of every voice, but a caller
    has declined it.
    """
    storage.register("alice")
    cancel(storage.parts, NAMESPACE, job_of(storage, "alice"))
    for _ in range(3):
        ask_for_sweep(storage.index.ungated)
        storage.clock.sleep(20)
        storage.housekeeper.turn()
    assert not storage.raw.exists(DIRTY)
    assert storage.jobs("alice", open_only=True) == []
    assert profile_status(storage, "alice") == ("failed", "canceled")


def test_it_stays_canceled_when_redis_is_lost(storage: Storage):
    """A canceled job stays canceled when Redis is lost. The job's record goes with Redis, but its
    cancellation is a fact.
    """
    storage.register("alice")
    cancel(storage.parts, NAMESPACE, job_of(storage, "alice"))
    storage.raw.flushall()
    storage.housekeeper.rebuild()
    storage.housekeeper.sweep()
    assert profile_status(storage, "alice") == ("failed", "canceled")
    assert storage.jobs("alice") == []


def test_a_running_job_ends_without_publishing(storage: Storage):
    """A canceled running job ends without publishing: its worker notices when it is about to publish."""
    storage.register("alice")
    (work,) = storage.take()
    storage.publisher.progress(work, "encoding", 1)
    assert cancel(storage.parts, NAMESPACE, work.job_id).state == "canceled"
    assert storage.publish(work) is False
    assert [job.state for job in storage.jobs("alice")] == ["canceled"]
    assert storage.served("alice") is None
    assert not any(key.endswith((".safetensors", ".json")) for key in storage.objects("alice"))


def test_a_canceled_job_that_fails_stays_canceled(storage: Storage):
    """A canceled job that fails stays canceled, because its result no longer matters."""
    storage.register("alice")
    (work,) = storage.take()
    cancel(storage.parts, NAMESPACE, work.job_id)
    storage.publisher.fail(work, Unavailable("away"))
    assert [job.state for job in storage.jobs("alice")] == ["canceled"]
    assert profile_status(storage, "alice") == ("failed", "canceled")


@pytest.mark.parametrize("moment", ["said so", "begun"])
def test_it_is_too_late_once_the_artifact_is_being_stored(storage: Storage, moment: str):
    """A job cannot be canceled once its artifact is being stored. A caller whose cancellation was
    acknowledged must not find the artifact in force afterwards.
    """
    storage.register("alice")
    (work,) = storage.take()
    refused: list[JobFinished] = []
    may_publish = storage.publisher._may_publish

    def begin_then_cancel(*given: object) -> bool:
        if moment == "said so":
            storage.publisher.progress(work, "publishing", 2)
        begun = may_publish(*given)  # type: ignore[arg-type]
        with pytest.raises(JobFinished, match="storing its artifact") as caught:
            cancel(storage.parts, NAMESPACE, work.job_id)
        refused.append(caught.value)
        return begun

    storage.publisher._may_publish = begin_then_cancel  # type: ignore[method-assign]
    assert storage.publish(work) is True
    assert len(refused) == 1
    assert profile_status(storage, "alice") == ("ready", None)
    storage.settle()
    storage.check_settled("alice")


def test_what_a_dead_attempt_began_to_publish_does_not_protect_the_next_one(storage: Storage):
    """An artifact that a dead attempt began to publish does not protect the next attempt. A job whose worker
    died at the wrong moment could otherwise never be canceled.
    """
    storage.register("alice")
    (work,) = storage.take()
    storage.index.begin(
        work.speaker_id, work.job_id, work.number, work.pending, work.akey, token=f"1-{work.token}"
    )
    (again,) = storage.take()
    assert again.number == 2
    assert cancel(storage.parts, NAMESPACE, work.job_id).state == "canceled"
    assert storage.publish(again) is False


def test_to_cancel_twice_is_to_cancel_once(storage: Storage):
    """Canceling twice is the same as canceling once, because a caller that got no answer asks again."""
    storage.register("alice")
    job_id = job_of(storage, "alice")
    first = cancel(storage.parts, NAMESPACE, job_id)
    storage.clock.sleep(5)
    assert cancel(storage.parts, NAMESPACE, job_id) == first


def test_what_has_ended_cannot_be_canceled(storage: Storage):
    """A job that has ended cannot be canceled, nor can one that does not exist."""
    storage.ready("alice")
    (done,) = storage.jobs("alice")
    with pytest.raises(JobFinished, match=f"'{done.id}' is in state 'succeeded'; only a queued or"):
        cancel(storage.parts, NAMESPACE, done.id)
    for namespace, job_id in ((NAMESPACE, "job_none"), ("tenant", done.id)):
        with pytest.raises(JobNotFound):
            cancel(storage.parts, namespace, job_id)
    assert profile_status(storage, "alice") == ("ready", None)


def test_what_was_served_serves_on(storage: Storage):
    """A canceled forced extraction leaves the artifact that was served before."""
    storage.ready("alice")
    served = storage.served("alice")
    extract(storage, "alice", force=True)
    cancel(storage.parts, NAMESPACE, job_of(storage, "alice"))
    assert storage.served("alice") == served
    assert profile_status(storage, "alice") == ("ready", None)
    storage.settle()
    storage.check_settled("alice")


def test_force_makes_what_was_canceled(storage: Storage):
    """A forced extraction makes what was canceled. Without force a canceled extraction stays canceled, as a
    failed one stays failed.
    """
    storage.register("alice")
    cancel(storage.parts, NAMESPACE, job_of(storage, "alice"))
    assert extract(storage, "alice") is None
    assert extract(storage, "alice", force=True)
    storage.finish_all("alice")
    assert profile_status(storage, "alice") == ("ready", None)


def test_a_newer_encoder_makes_it(storage: Storage):
    """A newer encoder makes the artifact, because only the older computation was canceled."""
    storage.register("alice")
    cancel(storage.parts, NAMESPACE, job_of(storage, "alice"))
    storage.announce(NEXT_FINGERPRINT)
    storage.housekeeper.turn()
    storage.finish_all("alice")
    assert profile_status(storage, "alice") == ("ready", None)


def test_a_job_for_which_there_never_was_a_worker_is_canceled(tmp_path: Path, valkey: ValkeyServer):
    """A job for which there never was a worker can be canceled. No worker has announced with what its
    artifact would be made, so it stays canceled until a caller forces it.
    """
    storage = Storage(tmp_path / "bucket", valkey.url)
    storage.raw.flushall()
    storage.housekeeper.rebuild()
    storage.register("alice")
    cancel(storage.parts, NAMESPACE, job_of(storage, "alice"))
    storage.housekeeper.sweep()
    assert not storage.register("alice").created, "the same again"
    assert extract(storage, "alice") is None
    assert storage.jobs("alice", open_only=True) == []
    assert storage.raw.llen(f"rq:queue:extract.{PROFILE}") == 0
    assert profile_status(storage, "alice") == ("failed", "canceled")
    assert extract(storage, "alice", force=True) == job_of(storage, "alice")
    assert profile_status(storage, "alice") == ("pending", None)
    storage.index.close()
    storage.raw.close()


def test_others_in_the_queue_are_left(storage: Storage):
    for name in ("alice", "bob", "carol"):
        storage.register(name, number=len(name))
    cancel(storage.parts, NAMESPACE, job_of(storage, "bob"))
    assert [work.version.record.name for work in storage.take()] == ["alice", "carol"]


@pytest.mark.parametrize("way", Border.WAYS)
def test_whichever_call_fails_asking_again_cancels_it(storage: Storage, way: str):
    """A cancellation can be repeated whichever call fails. In between nothing is half canceled: the job goes
    on, or it is canceled for good.
    """
    for call in range(1, 20):
        name = f"voice-{call}"
        storage.register(name, number=call)
        job_id = job_of(storage, name)
        with storage.border.failing(call, way) as reached:
            with suppress(Unavailable):
                assert cancel(storage.parts, NAMESPACE, job_id).state == "canceled"
            if not reached():
                break
        assert cancel(storage.parts, NAMESPACE, job_id).state == "canceled"
        storage.clock.sleep(20)
        storage.housekeeper.turn()
        assert storage.jobs(name, open_only=True) == []
        assert storage.index.load(speaker_id(name)).speaker.versions == storage.truth(name).versions
    else:
        raise AssertionError("canceling makes too many calls")
    assert call > 4
