"""Tests of which parts of a job are read, and of what is refused: the line between Redis and code that runs.
No server is needed, because a client that is never used stands in for one.
"""

import json
import pickle
import tracemalloc
import zlib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from rq.job import JobStatus

from services.extractor_worker.jobs.batch_worker import HandlerContractError, call
from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED
from services.extractor_worker.jobs.leases import fails_for_good, plan_start
from services.shared.configuration.values import LONGEST_DURATION_SECONDS
from services.shared.queue import rq_jobs
from services.shared.queue.rq_jobs import (
    FAILURE_SECONDS,
    MAX_DATA_BYTES,
    RESULT_SECONDS,
    RETRIES,
    STORED_FIELDS,
    JobQueue,
    JobRefusedError,
    QueuedJob,
    enqueue,
    is_preparation,
    preparation_queue,
    profile_of,
    queue_name,
)
from speaker_registry.errors import AudioTooShort, ExtractorFailed

QUEUE = JobQueue("extract.test", Redis())


def data(
    function: object = "extract", instance: object = None, args: object = (), kwargs: object = None
) -> bytes:
    return json.dumps([function, instance, args, {} if kwargs is None else kwargs]).encode()


def stored(**fields: bytes) -> dict[bytes, bytes]:
    """A job's hash as RQ writes it."""
    plain = {"data": zlib.compress(data()), "status": b"queued", "created_at": b"2026-01-01T00:00:00.000000Z"}
    return {name.encode(): value for name, value in (plain | fields).items()}


def load(job_id: bytes = b"a-job", **fields: bytes) -> QueuedJob:
    return QUEUE.load(job_id, stored(**fields))


class Evil:
    """Runs something when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("unpickled",)


def test_a_job_is_a_function_s_name_and_ids():
    """All a handler needs to find everything else in the bucket."""
    job = load(data=data(kwargs={"speaker": "default/alice", "number": 3, "previous": None}))
    assert (job.function, job.kwargs) == (
        "extract",
        {"speaker": "default/alice", "number": 3, "previous": None},
    )


@pytest.mark.parametrize(
    "payload",
    [
        data(function=["os", "system"]),
        data(function="os.system; import os"),
        data(function="__import__('os')"),
        data(function=""),
        data(instance={"an": "object"}),
        data(instance="services.shared.queue.rq_jobs.QueuedJob"),
        data(args=["rm -rf"]),
        data(kwargs=[]),
        data(kwargs={"audio": "x" * 201}),
        data(kwargs={"audio": ["not", "an", "id"]}),
        data(kwargs={"seconds": 1.5}),
        data(kwargs={str(number): number for number in range(17)}),
        b"[" * 10_000,
        b"",
        b"\xff\xfe",
        b"null",
        pickle.dumps(("extract", None, (), {})),
        pickle.dumps(Evil()),
        zlib.compress(pickle.dumps(Evil())),
        zlib.compress(b"[" + b" " * 50_000_000),
        data().decode().encode("utf-16"),
        data().decode().encode("utf-16-le"),
        data().decode().encode("utf-32"),
        b"\xef\xbb\xbf" + data(),
    ],
    ids=lambda payload: repr(payload[:30]),
)
def test_anything_else_is_refused_when_it_is_loaded(payload):
    """A writer of Redis can write jobs. Stock RQ would import, call or unpickle these."""
    with pytest.raises(JobRefusedError):
        load(data=payload)


def test_a_bomb_is_not_unpacked():
    """A few kilobytes of zlib can hold gigabytes."""
    bomb = zlib.compress(b" " * 10**8, 9)
    tracemalloc.start()
    try:
        with pytest.raises(JobRefusedError, match=str(MAX_DATA_BYTES)):
            load(data=bomb)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10**6


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "subprocess.check_output", "extract"])
def test_no_job_gives_out_a_function_to_call(name):
    """The name is for looking up a handler. Even one that can be imported is not."""
    job = load(data=data(function=name))
    with pytest.raises(JobRefusedError):
        job._execute()


def test_callbacks_webhooks_and_pickled_extras_are_not_read():
    """Stock RQ imports callbacks, fetches webhooks' URLs, and unpickles meta when a caller forgets a flag."""
    job = load(
        success_callback_name=b"os.system",
        failure_callback_name=b"os.system",
        stopped_callback_name=b"os.system",
        webhooks=json.dumps([{"url": "http://169.254.169.254/", "job_status": "finished"}]).encode(),
        meta=pickle.dumps(Evil()),
        result=pickle.dumps(Evil()),
        exc_info=zlib.compress(b" " * 10**8, 9),
    )
    assert [job.success_callback, job.failure_callback, job.stopped_callback] == [None, None, None]
    assert (job.webhooks, job.meta, job._result, job._exc_info) == ([], {}, None, None)


def test_json_is_used_whatever_serializer_a_caller_asks_for():
    """RQ's default is pickle, and its tools construct jobs themselves."""
    job = QueuedJob("a-job", connection=Redis(), serializer="pickle")
    assert job.serializer.dumps([1]) == b"[1]"


def test_nothing_in_a_job_can_make_it_wait_repeat_or_stay_for_ever():
    """Intervals need a scheduler, dependents a parent that succeeds; a TTL takes the hash from its worker."""
    job = load(
        retries_left=b"1000000",
        retry_intervals=b"[3600]",
        repeats_left=b"5",
        ttl=b"1",
        result_ttl=b"-1",
        failure_ttl=b"-1",
        dependency_ids=b'["another"]',
        rate_limit_key=b"a full one",
        rate_limit_concurrency=b"1",
    )
    assert not job.has_rate_limit
    assert (job.retries_left, job.retry_intervals, job.repeats_left, job.ttl) == (RETRIES, None, None, None)
    assert (job.result_ttl, job.failure_ttl, job._dependency_ids) == (RESULT_SECONDS, FAILURE_SECONDS, [])


@pytest.mark.parametrize(
    ("job_id", "fields"),
    [
        (b"../../etc", {}),
        (b"\xff", {}),
        (b"has:colon", {}),
        (b"a-job", {"timeout": b"soon"}),
        (b"a-job", {"status": b"sleeping"}),
        (b"a-job", {"created_at": b"yesterday"}),
        (b"a-job", {"attempt": b"many"}),
        (b"a-job", {"retries_left": b"x"}),
        (b"a-job", {"timeout": b"9" * 30}),
        (b"a-job", {"timeout": b"9" * 5000}),
        (b"a-job", {"timeout": b"86401"}),
        (b"a-job", {"timeout": b"2d"}),
    ],
)
def test_an_unreadable_job_is_refused_with_one_error(job_id, fields):
    """Stock workers die of such a hash, one after the other, at every start."""
    with pytest.raises(JobRefusedError):
        load(job_id, **fields)


FIELDS = st.sampled_from(sorted(STORED_FIELDS | {b"attempt", b"execution"}))
VALUES = (
    st.binary(max_size=20)
    | st.integers().map(lambda number: str(number).encode())
    | st.sampled_from([status.value.encode() for status in JobStatus])
    | st.sampled_from([data().decode().encode(encoding) for encoding in ("utf-8", "utf-16", "utf-32")])
)


@given(st.dictionaries(FIELDS, VALUES, max_size=4))
def test_a_worker_can_work_with_whatever_it_was_not_refused(fields):
    """A job that is found unreadable only later would end the worker, and the next one, and the next."""
    try:
        job = QUEUE.load(b"a-job", stored() | fields)
    except JobRefusedError:
        return
    assert isinstance(job.function, str)
    assert isinstance(job.kwargs, dict)
    assert job.timeout is None or job.timeout <= LONGEST_DURATION_SECONDS
    assert 0 <= job.retries_left <= RETRIES


def test_a_job_cannot_have_retries_without_end():
    """A number below zero would be counted down for ever."""
    assert load(retries_left=b"-1").last_attempt


def test_a_job_belongs_to_the_queue_it_was_found_in():
    """RQ derives the registry's key from `origin`: another one would hide the job from maintenance."""
    assert load(origin=b"somewhere.else").origin == "extract.test"


def test_a_client_that_decodes_is_refused_at_once():
    """RQ would fail much later, on the first job, with a type error."""
    with pytest.raises(ValueError, match="decode_responses"):
        JobQueue("extract.test", Redis(decode_responses=True))


def test_another_prefix_of_rq_s_keys_is_refused(monkeypatch: pytest.MonkeyPatch):
    """RQ reads the prefix from the environment. Set for the API and not for workers, all jobs would wait for
    ever.
    """
    monkeypatch.setattr(rq_jobs, "RQ_KEY_PREFIX", "{voices}")
    with pytest.raises(ValueError, match=r"RQ_KEY_PREFIX is '\{voices\}', and must be unset"):
        JobQueue("extract.test", Redis())


@pytest.mark.parametrize("profile", ["qwen3-tts-0.6b", "ecapa", "third_party.codec-2"])
def test_a_profile_s_queue_is_named_after_it(profile):
    """Autoscalers measure the queues by name."""
    assert queue_name(profile) == f"extract.{profile}"


@pytest.mark.parametrize("profile", ["qwen3-tts-0.6b", "ecapa", "third_party.codec-2"])
def test_a_queue_of_preparations_is_told_from_others_and_names_its_profile(profile):
    """Workers take live jobs first, and count each job for its profile."""
    queue = preparation_queue(profile, "sha256:" + "0123456789abcdef" * 4)
    assert queue == f"prepare.{profile}.0123456789abcdef"
    assert (is_preparation(queue), profile_of(queue)) == (True, profile)
    assert (is_preparation(queue_name(profile)), profile_of(queue_name(profile))) == (False, profile)


@pytest.mark.parametrize("profile", ["a,b", "a:b", "a b", "Ä", "", "x" * 100, "a\nb", "UPPER"])
def test_a_name_that_would_break_rq_s_keys_is_refused(profile):
    """A comma splits a worker's list of queues; a colon could name another queue's intermediate list."""
    with pytest.raises(ValueError, match="no queue"):
        queue_name(profile)


@pytest.mark.parametrize("kwargs", [{"audio": "x" * 1000}, {"samples": [0.1]}, {"a": b"bytes"}])
def test_content_cannot_be_enqueued(kwargs):
    """Audio or transcripts in Redis would outlive an erasure."""
    with pytest.raises((JobRefusedError, TypeError)):
        enqueue(QUEUE, "a-job", "extract", kwargs)


# -- what a worker does with jobs it took --


def taken(
    *jobs: tuple[bytes, Mapping[bytes, bytes] | Exception],
) -> dict[bytes, Mapping[bytes, bytes] | Exception]:
    return dict(jobs)


def plan_for(ids: list[bytes], jobs: Mapping[bytes, Mapping[bytes, bytes] | Exception]):
    return plan_start(QUEUE, ids, jobs, {"extract": None})


def test_new_jobs_are_started_together_in_their_order():
    """The batch is where a GPU's time is saved."""
    plan = plan_for([b"b", b"a"], taken((b"a", stored()), (b"b", stored())))
    assert [job.id for job in plan.start] == ["b", "a"]


def test_copies_ended_and_vanished_jobs_are_dropped():
    """A list can hold an id twice; only the hash says what is still to be done."""
    jobs = taken((b"a", stored()), (b"done", stored(status=b"finished")), (b"gone", {}))
    plan = plan_for([b"a", b"done", b"a", b"gone", b"a"], jobs)
    assert [job.id for job in plan.start] == ["a"]
    assert sorted(plan.drop) == [b"a", b"a", b"done", b"gone"]


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "another_handler"])
def test_a_function_without_a_handler_is_refused(name):
    """The list of handlers is the list of what can be run."""
    plan = plan_for([b"a"], taken((b"a", stored(data=data(function=name)))))
    assert list(plan.refuse) == [b"a"]
    assert not plan.start


def test_a_key_that_holds_no_job_is_refused():
    """Any client may have written a string or a list there."""
    plan = plan_for([b"a"], taken((b"a", TypeError("WRONGTYPE"))))
    assert list(plan.refuse) == [b"a"]


# -- the contract with handlers --


def test_one_result_or_exception_for_each_job_in_order():
    """Each job ends on its own: one bad clip fails alone."""
    error = AudioTooShort("0.2 s")
    assert call(lambda jobs: [1, error, 3], [load()] * 3) == [1, error, 3]


@pytest.mark.parametrize("results", [[], [1], [1, 2, 3], 5, None])
def test_a_handler_that_returns_another_number_of_results_ends_the_worker(results):
    """A shifted list would give every voice its neighbour's embedding."""
    with pytest.raises(SystemExit) as ending:
        call(lambda jobs: results, [load(), load()])
    assert ending.value.code == EXIT_UNFINISHED


@pytest.mark.parametrize("result", [object(), {"tensor": {1, 2}}, "x" * 20_000, float])
def test_a_result_that_is_not_small_json_fails_its_job_only(result):
    """RQ would store a sentence in its place and call the job finished; tensors do not go through Redis."""
    fine, wrong = call(lambda jobs: ["ok", result], [load(), load()])
    assert fine == "ok"
    assert isinstance(wrong, HandlerContractError)


def test_an_error_that_cannot_pass_fails_at_once():
    """A clip that is too short stays so; its caller should hear now, not after three more tries."""
    assert fails_for_good(load(retries_left=b"3"), AudioTooShort("0.2 s"))
    assert not fails_for_good(load(retries_left=b"3"), ExtractorFailed("cuBLAS"))
    assert not fails_for_good(load(retries_left=b"3"), OSError("reset by peer"))


def test_the_last_attempt_fails_whatever_the_error():
    """Retries are counted in the job, by whoever starts it."""
    assert fails_for_good(load(retries_left=b"0"), ExtractorFailed("cuBLAS"))
    assert fails_for_good(load(), ExtractorFailed("a job without any retries"))
