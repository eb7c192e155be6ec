"""Tests of the Redis queries of every scrape when Redis returns something unusual."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance.queue_signals import RedisSignals, _append_log_ok
from services.shared.configuration.registry import RegistrySettings
from services.shared.queue.rq_jobs import PICTURES_QUEUE, QUARANTINE_KEY, JobQueue, enqueue, queue_name
from services.shared.registry.opened import Opened
from services.shared.registry.opening import open_registry
from services.shared.view.keys import failed_proofs_key
from services.shared.view.workers import FailedProof
from speaker_registry.errors import Unavailable
from tests.encoders import make_current
from tests.opened_registry import MovableClock, OpenedRegistry, folder_settings

PROFILE = "qwen3-tts-0.6b"


@pytest.fixture
def registry(tmp_path: Path, valkey: ValkeyServer, redis_client: redis.Redis) -> Iterator[OpenedRegistry]:
    with closing(OpenedRegistry(folder_settings(tmp_path / "bucket"), valkey.url)) as registry:
        registry.worker.announce()
        registry.housekeeping().turn()
        yield registry


@pytest.fixture
def signals(registry: OpenedRegistry, valkey: ValkeyServer) -> Iterator[RedisSignals]:
    with redis.Redis.from_url(valkey.url) as connection:
        yield signals_of(registry.opened, connection)


def signals_of(opened: Opened, connection: redis.Redis) -> RedisSignals:
    view = opened.speakers.view
    return RedisSignals(view, opened.profile_records, opened.workers, opened.catalogue, connection)


def queued_job(registry: OpenedRegistry) -> str:
    """Return the id of the only job that waits."""
    [job] = registry.worker.queued()
    return job.id


def samples(signals: RedisSignals) -> dict[tuple[str, ...], float]:
    """Return the samples by name and values of the labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in signals.collect()
        for sample in family.samples
    }


def test_a_view_that_knows_not_every_voice_is_shown_as_one(registry: OpenedRegistry, signals: RedisSignals):
    """A view that does not know every voice is shown as incomplete. Redis is up, and lists are slow or
    refused.
    """
    assert samples(signals)["registry_view_complete",] == 1
    registry.opened.generation.begin_replacement(registry.opened.generation.for_reading())
    shown = samples(signals)
    assert (shown["registry_redis_up",], shown["registry_view_in_use",]) == (1, 1)
    assert shown["registry_view_complete",] == 0
    registry.housekeeping().turn()
    assert samples(signals)["registry_view_complete",] == 1


def test_a_redis_of_another_registry_is_shown_as_a_closed_gate(
    registry: OpenedRegistry, signals: RedisSignals
):
    """A Redis of another registry is shown as a closed gate. Redis is up, and yet no client can register
    anything.
    """
    registry.redis.set("sr:view", "some run/another bucket/" + "0" * 32)
    assert samples(signals)["registry_view_in_use",] == 0


def test_a_redis_that_takes_no_writes_is_shown_as_a_closed_gate(
    registry: OpenedRegistry, signals: RedisSignals
):
    """A Redis that is full is up and can be read, and yet no client can register anything."""
    registry.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unavailable, match="takes no writes"):
            registry.opened.generation.check()
        shown = samples(signals)
        assert (shown["registry_redis_up",], shown["registry_view_in_use",]) == (1, 0)
    finally:
        registry.redis.config_set("maxmemory", 0)
    registry.opened.generation.check()
    assert samples(signals)["registry_view_in_use",] == 1


def test_a_user_that_must_not_read_the_view_is_shown_as_a_closed_gate(
    registry: OpenedRegistry, signals: RedisSignals
):
    """Redis was called down, and the metric of the view was missing, so the alert about it could not fire."""
    registry.redis.execute_command("ACL", "SETUSER", "default", "resetkeys", "~rq:*")
    try:
        shown = samples(signals)
        assert (shown["registry_redis_up",], shown["registry_view_in_use",]) == (1, 0)
    finally:
        registry.redis.execute_command("ACL", "SETUSER", "default", "allkeys")


def test_a_process_that_began_while_redis_was_full_does_not_call_it_down(
    registry: OpenedRegistry, valkey: ValkeyServer, tmp_path: Path
):
    """A process that began while Redis took no writes does not trust the view, and Redis is up all the
    same.
    """
    late = open_registry(
        folder_settings(tmp_path / "bucket"), RegistrySettings(redis_url=valkey.url), MovableClock()
    )
    registry.redis.config_set("maxmemory", 1)
    try:
        with closing(late), redis.Redis.from_url(valkey.url) as connection:
            shown = samples(signals_of(late, connection))
        assert (shown["registry_redis_up",], shown["registry_view_in_use",]) == (1, 0)
    finally:
        registry.redis.config_set("maxmemory", 0)


def test_no_scrape_waits_for_the_bucket(
    registry: OpenedRegistry, signals: RedisSignals, monkeypatch: pytest.MonkeyPatch
):
    """A bucket that is slow would be reported as a Redis that is down."""
    registry.opened.generation.begin_replacement(registry.opened.generation.for_reading())
    registry.opened.profile_records.clear_cache()
    monkeypatch.setattr(registry.opened.store, "read", lambda _: pytest.fail("the bucket was read"))
    assert samples(signals)["registry_redis_up",] == 1


def test_which_profiles_every_voice_must_have_is_shown_also_without_redis(
    registry: OpenedRegistry, signals: RedisSignals, monkeypatch: pytest.MonkeyPatch
):
    """The profiles that every voice must have are shown also without Redis, so that no alert wakes an
    operator for a profile that a single caller requested once.
    """

    def unreachable() -> None:
        raise redis.ConnectionError

    monkeypatch.setattr(signals, "_ask", unreachable)
    shown = samples(signals)
    required = {name for (metric, name), value in _labelled(shown) if metric.endswith("required") and value}
    assert required == set(registry.opened.catalogue.required)
    assert shown["registry_profile_required", "voxtral"] == 0


def _labelled(shown: Mapping[tuple[str, ...], float]) -> list[tuple[tuple[str, str], float]]:
    return [((key[0], key[1]), value) for key, value in shown.items() if len(key) == 2]


def test_workers_whose_encoder_failed_its_proof_are_counted(registry: OpenedRegistry, signals: RedisSignals):
    """Workers whose encoder failed its proof are counted. A report that is repeated with every heartbeat
    counts once, and is forgotten after ten minutes of silence.
    """
    failed = FailedProof(worker="w-1", device="cuda:0", reason="codes: 12.00% of the codes are equal")
    for _ in range(2):
        registry.opened.workers.report_failed({PROFILE: failed})
    assert samples(signals)["registry_proof_failed_workers", PROFILE] == 1
    assert samples(signals)["registry_proof_failed_workers", "voxtral"] == 0
    key = failed_proofs_key(registry.opened.generation.for_reading(), PROFILE)
    [report] = registry.redis.zrange(key, 0, -1)
    registry.redis.zadd(key, {report: (time.time() - 601) * 1000})
    assert samples(signals)["registry_proof_failed_workers", PROFILE] == 0


def test_profiles_that_are_made_with_other_weights_are_shown(registry: OpenedRegistry, signals: RedisSignals):
    """Profiles that are made with other weights are shown. Their voices do not sound as with the published
    weights, and those of untrained weights are of no use at all.
    """
    records, other = registry.opened.profile_records, "sha256:" + "2" * 64
    make_current(records, "voxtral", other, {"weights": {"custom": True}})
    make_current(records, "higgs-audio-v2", other, {}, untrained=True)
    make_current(records, "ming-tts", other, {"weights": {"untrained": False}})
    shown = dict(key[1:] for key in samples(signals) if key[0] == "registry_profile_weights")
    others = {name: weights for name, weights in shown.items() if weights != "published"}
    assert others == {"voxtral": "custom", "higgs-audio-v2": "untrained", "ming-tts": "none"}
    assert shown[PROFILE] == "published"


def test_what_was_put_away_is_counted(registry: OpenedRegistry, signals: RedisSignals):
    """Quarantined jobs are counted until an operator has looked at them and deleted the list."""
    registry.redis.rpush(QUARANTINE_KEY, "{}", "{}")
    assert samples(signals)["registry_quarantined_jobs",] == 2


@pytest.mark.parametrize("damage", ["key of another kind", "no time", "no job"])
def test_an_odd_job_at_the_head_of_a_queue_takes_only_its_age_away(
    registry: OpenedRegistry, signals: RedisSignals, damage: str
):
    """A malformed job at the head of a queue loses only the queue's age from the scrape, whatever another
    client wrote there. The other metrics are complete.
    """
    registry.register("alice")
    key = f"rq:job:{queued_job(registry)}"
    if damage == "no time":
        registry.redis.hset(key, "enqueued_at", "yesterday")
    else:
        registry.redis.delete(key)
    if damage == "key of another kind":
        registry.redis.set(key, "a text")
    shown = samples(signals)
    assert shown["registry_queue_depth", PROFILE, "queued"] == 1
    assert shown["registry_queue_oldest_job_age_seconds", PROFILE] == 0


def test_clips_that_wait_for_their_pictures_are_counted_apart(
    registry: OpenedRegistry, signals: RedisSignals, valkey: ValkeyServer
):
    """They belong to no profile, so the alerts about profiles must not see them."""
    assert samples(signals)["registry_pictures_queue_depth", "queued"] == 0
    assert samples(signals)["registry_pictures_queue_oldest_job_age_seconds",] == 0
    with redis.Redis.from_url(valkey.url) as connection:
        enqueue(JobQueue(PICTURES_QUEUE, connection), "draw-1", "draw", {"speaker": "a/alice"})
    registry.redis.hset("rq:job:draw-1", "enqueued_at", "2020-01-01T00:00:00.000000Z")
    shown = samples(signals)
    assert shown["registry_pictures_queue_depth", "queued"] == 1
    assert shown["registry_pictures_queue_oldest_job_age_seconds",] > 1e6
    assert not [key for key in shown if key[0] == "registry_queue_depth" and key[1] == PICTURES_QUEUE]


def test_the_oldest_job_is_found_though_tenants_take_turns(
    registry: OpenedRegistry, signals: RedisSignals, valkey: ValkeyServer
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


def test_the_age_of_the_oldest_job_is_measured_by_the_clock_of_redis(
    registry: OpenedRegistry, valkey: ValkeyServer
):
    """All API processes report the same age. Here the clock of the API is an hour behind that of Redis."""
    registry.register("alice")
    with redis.Redis.from_url(valkey.url) as connection:
        connection.set_response_callback("TIME", lambda time: (int(time[0]) + 3600, int(time[1])))
        shown = samples(signals_of(registry.opened, connection))
    assert 3600 <= shown["registry_queue_oldest_job_age_seconds", PROFILE] < 4200


def test_what_is_tried_again_has_waited_since_then(
    registry: OpenedRegistry, signals: RedisSignals, valkey: ValkeyServer
):
    """A retried job counts as waiting only since its retry. The time since its first attempt does not show
    that there were too few workers.
    """
    registry.register("alice")
    job_id = queued_job(registry)
    long_ago = "2020-01-01T00:00:00.000000Z"
    registry.redis.hset(f"rq:job:{job_id}", mapping={"created_at": long_ago, "enqueued_at": long_ago})
    assert samples(signals)["registry_queue_oldest_job_age_seconds", PROFILE] > 1e6
    with redis.Redis.from_url(valkey.url) as connection, connection.pipeline() as pipeline:
        queue = JobQueue(queue_name(PROFILE), connection)
        taken = queue.load(connection.lpop(queue.key), connection.hgetall(f"rq:job:{job_id}"))
        taken.retry(queue, pipeline)
        pipeline.execute()
    assert samples(signals)["registry_queue_depth", PROFILE, "queued"] == 1
    assert samples(signals)["registry_queue_oldest_job_age_seconds", PROFILE] < 60


def test_when_all_voices_were_looked_after_is_shown(registry: OpenedRegistry, signals: RedisSignals):
    """The time at which all voices were last looked after is shown, regardless of the process that did it."""
    assert samples(signals)["registry_last_sweep_timestamp_seconds",] == pytest.approx(time.time(), abs=120)
    registry.redis.delete("sr:swept")
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
