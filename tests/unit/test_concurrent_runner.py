"""Independent steps run at the same time, and none is left behind."""

import threading
import time

import pytest
import structlog

from services.shared.registry.opening import ConcurrentRunner


def test_steps_run_at_the_same_time():
    """Two blobs of one upload: the second must not wait for the first one's disk."""
    both = threading.Barrier(2, timeout=5)
    ConcurrentRunner(threads=2)([both.wait, both.wait])


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
