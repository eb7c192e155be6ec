"""Tests of the Redis queries of every scrape when Redis returns something unusual."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance.queue_signals import RedisSignals, _append_log_ok
from services.shared.queue.rq_jobs import PICTURES_QUEUE, QUARANTINE_KEY, JobQueue, enqueue, queue_name
from services.shared.view.keys import failed_proofs_key, shared_key
from services.shared.view.workers import FAILED_SECONDS, FailedProof
from tests.encoders import make_current
from tests.integration.storage import PROFILE, Storage


@pytest.fixture
def signals(storage: Storage, valkey: ValkeyServer) -> Iterator[RedisSignals]:
    with redis.Redis.from_url(valkey.url) as connection:
        parts = storage.parts
        yield RedisSignals(storage.index, parts.profile_records, parts.workers, parts.catalogue, connection)


def samples(signals: RedisSignals) -> dict[tuple[str, ...], float]:
    """Return the samples by name and values of the labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in signals.collect()
        for sample in family.samples
    }


def test_an_index_that_knows_not_every_voice_is_shown_as_one(storage: Storage, signals: RedisSignals):
    """An index that does not know every voice is shown as incomplete. Redis is up, and
    lists are slow or refused.
    """
    assert samples(signals)["registry_index_complete",] == 1
    storage.raw.delete("sr:boot")
    shown = samples(signals)
    assert (shown["registry_redis_up",], shown["registry_index_gate_open",]) == (1, 1)
    assert shown["registry_index_complete",] == 0
    storage.housekeeper.turn()
    assert samples(signals)["registry_index_complete",] == 1


def test_a_redis_of_another_registry_is_shown_as_a_closed_gate(storage: Storage, signals: RedisSignals):
    """A Redis of another registry is shown as a closed gate. Redis is up, and yet no
    client can register anything.
    """
    storage.raw.set("sr:boot", "some run/another bucket/3/1")
    assert samples(signals)["registry_index_gate_open",] == 0


def test_which_profiles_every_voice_must_have_is_shown_also_without_redis(
    storage: Storage, signals: RedisSignals, monkeypatch: pytest.MonkeyPatch
):
    """The profiles that every voice must have are shown also without Redis, so that no alert wakes an
    operator for a profile that a single caller requested once.
    """

    def unreachable() -> None:
        raise redis.ConnectionError

    monkeypatch.setattr(signals, "_ask", unreachable)
    shown = samples(signals)
    required = {name for (metric, name), value in _labelled(shown) if metric.endswith("required") and value}
    assert required == set(storage.parts.catalogue.required)
    assert shown["registry_profile_required", "voxtral"] == 0


def _labelled(shown: Mapping[tuple[str, ...], float]) -> list[tuple[tuple[str, str], float]]:
    return [((key[0], key[1]), value) for key, value in shown.items() if len(key) == 2]


def test_workers_whose_encoder_failed_its_proof_are_counted(storage: Storage, signals: RedisSignals):
    """Workers whose encoder failed its proof are counted. A report that is repeated with every heartbeat
    counts once, and is forgotten after ten minutes of silence.
    """
    failed = FailedProof(worker="w-1", device="cuda:0", reason="codes: 12.00% of the codes are equal")
    for _ in range(2):
        storage.parts.workers.report_failed({PROFILE: failed})
    assert samples(signals)["registry_proof_failed_workers", PROFILE] == 1
    assert samples(signals)["registry_proof_failed_workers", "voxtral"] == 0
    key = failed_proofs_key(storage.generation.for_reading(), PROFILE)
    storage.raw.zadd(key, {storage.raw.zrange(key, 0, -1)[0]: (time.time() - FAILED_SECONDS - 1) * 1000})
    assert samples(signals)["registry_proof_failed_workers", PROFILE] == 0


def test_profiles_that_are_made_with_other_weights_are_shown(storage: Storage, signals: RedisSignals):
    """Profiles that are made with other weights are shown. Their voices do not sound as with the published
    weights, and those of untrained weights are of no use at all.
    """
    profiles, other = storage.parts.profile_records, "sha256:" + "2" * 64
    make_current(profiles, "voxtral", other, {"weights": {"custom": True}})
    make_current(profiles, "higgs-audio-v2", other, untrained=True)
    shown = dict(key[1:] for key in samples(signals) if key[0] == "registry_profile_weights")
    others = {name: weights for name, weights in shown.items() if weights != "published"}
    assert others == {"voxtral": "custom", "higgs-audio-v2": "untrained"}
    assert shown[PROFILE] == "published"
    storage.raw.delete(shared_key(storage.generation.for_reading()))
    assert "registry_profile_weights" not in {key[0] for key in samples(signals)}


def test_what_was_put_away_is_counted(storage: Storage, signals: RedisSignals):
    """Quarantined jobs are counted until an operator has looked at them and deleted the list."""
    storage.raw.rpush(QUARANTINE_KEY, "{}", "{}")
    assert samples(signals)["registry_quarantined_jobs",] == 2


@pytest.mark.parametrize("damage", ["key of another kind", "no time", "no job"])
def test_an_odd_job_at_the_head_of_a_queue_takes_only_its_age_away(
    storage: Storage, signals: RedisSignals, damage: str
):
    """A malformed job at the head of a queue loses only the queue's age from the scrape, whatever another
    client wrote there. The other metrics are complete.
    """
    storage.register("alice")
    [job] = storage.jobs()
    key = f"rq:job:{job.id}"
    if damage == "no time":
        storage.raw.hset(key, "enqueued_at", "yesterday")
    else:
        storage.raw.delete(key)
    if damage == "key of another kind":
        storage.raw.set(key, "a text")
    shown = samples(signals)
    assert shown["registry_queue_depth", PROFILE, "queued"] == 1
    assert shown["registry_queue_oldest_job_age_seconds", PROFILE] == 0


def test_clips_that_wait_for_their_pictures_are_counted_apart(
    storage: Storage, signals: RedisSignals, valkey: ValkeyServer
):
    """They belong to no profile, so the alerts about profiles must not see them."""
    assert samples(signals)["registry_pictures_queue_depth", "queued"] == 0
    assert samples(signals)["registry_pictures_queue_oldest_job_age_seconds",] == 0
    with redis.Redis.from_url(valkey.url) as connection:
        enqueue(JobQueue(PICTURES_QUEUE, connection), "draw-1", "draw", {"speaker": "a/alice"})
    storage.raw.hset("rq:job:draw-1", "enqueued_at", "2020-01-01T00:00:00.000000Z")
    shown = samples(signals)
    assert shown["registry_pictures_queue_depth", "queued"] == 1
    assert shown["registry_pictures_queue_oldest_job_age_seconds",] > 1e6
    assert not [key for key in shown if key[0] == "registry_queue_depth" and key[1] == PICTURES_QUEUE]


def test_the_oldest_job_is_found_though_tenants_take_turns(
    storage: Storage, signals: RedisSignals, valkey: ValkeyServer
):
    """The oldest job is found though tenants take turns. The next job to be taken may be a young one: the
    alert is about the one that has waited longest.
    """
    with redis.Redis.from_url(valkey.url) as connection:
        queue = JobQueue(queue_name(PROFILE), connection)
        for job_id, tenant in {"old": "a", "older": "a", "young": "b"}.items():
            enqueue(queue, job_id, "extract", {"speaker": f"{tenant}/alice"})
        assert queue.job_ids == ["old", "young", "older"]
        connection.hset("rq:job:older", "enqueued_at", "2020-01-01T00:00:00.000000Z")
    assert samples(signals)["registry_queue_oldest_job_age_seconds", PROFILE] > 1e6


def test_what_is_tried_again_has_waited_since_then(
    storage: Storage, signals: RedisSignals, valkey: ValkeyServer
):
    """A retried job counts as waiting only since its retry. The time since its first attempt does not show
    that there were too few workers.
    """
    storage.register("alice")
    [job] = storage.jobs()
    long_ago = "2020-01-01T00:00:00.000000Z"
    storage.raw.hset(f"rq:job:{job.id}", mapping={"created_at": long_ago, "enqueued_at": long_ago})
    assert samples(signals)["registry_queue_oldest_job_age_seconds", PROFILE] > 1e6
    with redis.Redis.from_url(valkey.url) as connection, connection.pipeline() as pipeline:
        queue = JobQueue(queue_name(PROFILE), connection)
        taken = queue.load(connection.lpop(queue.key), connection.hgetall(f"rq:job:{job.id}"))
        taken.retry(queue, pipeline)
        pipeline.execute()
    assert samples(signals)["registry_queue_depth", PROFILE, "queued"] == 1
    assert samples(signals)["registry_queue_oldest_job_age_seconds", PROFILE] < 60


def test_when_all_voices_were_looked_after_is_shown(storage: Storage, signals: RedisSignals):
    """The time at which all voices were last looked after is shown, regardless of the process that did it."""
    assert samples(signals)["registry_last_sweep_timestamp_seconds",] == pytest.approx(time.time(), abs=120)
    storage.raw.delete("sr:swept")
    assert samples(signals)["registry_last_sweep_timestamp_seconds",] == 0


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"aof_enabled": 1, "aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok"}, True),
        ({"aof_enabled": 1, "aof_last_write_status": "err", "aof_last_bgrewrite_status": "ok"}, False),
        ({"aof_enabled": 1, "aof_last_write_status": "ok", "aof_last_bgrewrite_status": "err"}, False),
        ({"aof_enabled": 0, "aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok"}, None),
        ({}, None),
    ],
)
def test_an_append_only_file_that_cannot_be_written_shows(said: Mapping[str, Any], shown: bool | None):
    """An append-only file that cannot be written is shown. A full disk is then noticed before a restart that
    would need the missing data.
    """
    assert _append_log_ok(said) is shown
