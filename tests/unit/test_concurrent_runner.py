"""Independent steps run at the same time, and none is left behind."""

import threading
import time

import pytest
import structlog

from services.registry_api.commands import serve
from services.shared.model.threads import BackgroundThread, is_thread_refused, started_pool
from services.shared.registry.opening import ConcurrentRunner
from tests.threads import no_more_threads


def test_steps_run_at_the_same_time():
    """Two blobs of one upload: the second must not wait for the first one's disk."""
    both = threading.Barrier(2, timeout=5)
    ConcurrentRunner(threads=2)([both.wait, both.wait])


def test_its_work_needs_no_further_thread():
    """A system may refuse one at any time: the steps of a request would fail."""
    run, both = ConcurrentRunner(threads=1), threading.Barrier(2, timeout=5)
    with no_more_threads():
        run([both.wait, both.wait])


def test_what_runs_in_the_background_needs_no_further_thread_after_the_first():
    """A thread that is started while memory is short may die before Python notices it, and its starter waits
    forever.
    """
    done = threading.Semaphore(0)
    run = BackgroundThread("background")
    run(done.release)
    assert done.acquire(timeout=5)
    with no_more_threads():
        run(done.release)
        assert done.acquire(timeout=5)
    run.close()


def test_a_background_thread_that_was_refused_is_started_later():
    run, done = BackgroundThread("background"), threading.Event()
    with no_more_threads(), pytest.raises(RuntimeError):
        run(done.set)
    run(done.set)
    assert done.wait(5)
    run.close()


def test_a_background_thread_goes_on_after_an_error():
    """A bug in one function must not keep all later ones from running."""
    run, done = BackgroundThread("background"), threading.Event()

    def fail() -> None:
        raise AssertionError

    with structlog.testing.capture_logs() as logged:
        run(fail)
        run(done.set)
        assert done.wait(5)
    assert [line["event"] for line in logged] == ["thread.failed"]
    run.close()


def test_a_pool_that_is_refused_a_thread_raises():
    """A process that cannot start them all ends before it takes any work."""
    with no_more_threads(), pytest.raises(RuntimeError) as refusal:
        started_pool(2, "refused")
    assert is_thread_refused(refusal.value)


def test_a_pool_that_is_refused_a_thread_ends_those_that_it_has(monkeypatch: pytest.MonkeyPatch):
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("refused")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="refused"):
        started_pool(2, "refused")
    started[0].join(5)
    assert not started[0].is_alive()


def test_a_server_that_is_refused_a_thread_at_its_start_says_so(monkeypatch: pytest.MonkeyPatch):
    """A traceback would not say what to change."""
    for name in ("configure_logs", "warn_of_unknown_variables"):
        monkeypatch.setattr(serve, name, lambda *_: None)
    monkeypatch.setattr(serve, "_serve", lambda: started_pool(2, "refused"))
    with no_more_threads(), structlog.testing.capture_logs() as logged:
        assert serve.run() == 1
    assert [(line["event"], "thread" in line["reason"]) for line in logged] == [("api.cannot_start", True)]


def test_log_lines_keep_the_id_of_their_request():
    """A failed put is found in the log by the id that the caller was given."""
    seen = []
    with structlog.contextvars.bound_contextvars(request_id="req_1"):
        ConcurrentRunner()([lambda: seen.append(structlog.contextvars.get_contextvars())])
    assert seen == [{"request_id": "req_1"}]


def test_an_error_is_raised_when_all_have_ended():
    """A step that is still running after a refusal could land at any time."""
    ended = []

    def fail() -> None:
        raise OSError("disk full")

    def slow() -> None:
        time.sleep(0.1)
        ended.append("slow")

    with pytest.raises(OSError, match="disk full"):
        ConcurrentRunner(threads=2)([fail, slow])
    assert ended == ["slow"]


def test_nobody_waits_for_the_steps_of_others():
    """One request for hundreds of voices kept all threads busy, and every other one waited behind it."""
    run = ConcurrentRunner(threads=1)
    both_begun, done, ended = threading.Barrier(3, timeout=5), threading.Event(), []

    def long() -> None:
        both_begun.wait()
        assert done.wait(5), "the steps of another caller waited for this one"

    other = threading.Thread(target=run, args=([long, long],))
    other.start()
    both_begun.wait()
    run([lambda: ended.append(1), lambda: ended.append(2)])
    assert ended == [1, 2]
    done.set()
    other.join()


def test_the_error_of_the_first_failed_step_is_raised():
    def fail(message: str) -> None:
        raise OSError(message)

    with pytest.raises(OSError, match="first"):
        ConcurrentRunner(threads=2)([lambda: None, lambda: fail("first"), lambda: fail("second")])
