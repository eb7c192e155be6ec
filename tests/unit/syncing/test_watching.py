"""The loop of `sync --watch`: when it syncs again, what it tells, and what ends it."""

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from speaker_registry import errors
from speaker_registry.cli import syncing
from speaker_registry.cli.command import Output
from speaker_registry.exchange import Reply, Request, error_of, no_registry
from speaker_registry.pushing.speech_server import SpeechServer
from speaker_registry.syncing.synchronization import Outcome, Report
from speaker_registry.syncing.watching import Watch


class Ended(BaseException):
    """The test has no further sync to offer."""


def report(
    state: Any = "unchanged", reason: str | None = None, removed: int = 0, fault: str | None = None
) -> Report:
    outcome = Outcome(name="alice", version=1, state=state, reason=reason)
    error = None if fault is None else errors.Unavailable(fault)
    return Report(outcomes=(outcome,), removed=removed, fault=error)


def foreign(status: int) -> errors.SpeakerRegistryError:
    """Return the error for the page of a proxy."""
    error = error_of(Reply(status, {}, b"<html>page</html>"), Request(path="/v1/voices"))
    assert error is not None
    return error


def told(*results: Report | Exception) -> list[object]:
    """Return what is told while syncs end in this way, with `wait` for each pause."""
    seen: list[object] = []
    offered: Iterator[Report | Exception] = iter(results)

    def run() -> Report:
        result = next(offered, None)
        if result is None:
            raise Ended
        if isinstance(result, Exception):
            raise result
        return result

    watch = Watch(run=run, wait=lambda: seen.append("wait"), on_report=seen.append, on_error=seen.append)
    with pytest.raises(Ended):
        watch.forever()
    return seen


def test_only_news_are_told():
    """A log that repeats every 30 seconds that nothing has changed hides what has."""
    same, written, lacking = report(), report("written"), report("missing", "its artifact is failed")
    assert told(same, same, written, same, lacking, lacking) == [
        *(same, "wait", "wait", written, "wait", "wait", lacking, "wait", "wait")
    ]
    removed = report(removed=1)
    assert told(same, removed, removed) == [same, "wait", removed, "wait", removed, "wait"]


def test_a_fault_that_concerns_no_outcome_is_told_once():
    """A deletion without an answer leaves a voice in the server that the registry does not have any more."""
    same, busy, full = report(), report(fault="busy"), report(fault="full")
    assert told(same, busy, busy, full, same) == [
        *(same, "wait", busy, "wait", "wait", full, "wait", same, "wait")
    ]


@pytest.mark.parametrize(
    "error",
    [
        errors.Unavailable("away"),
        foreign(502),
        errors.RateLimited("slower"),
        errors.SpeakerRegistryError("broken"),
    ],
)
def test_a_registry_that_is_away_is_told_once_and_waited_for(error: Exception):
    """The sidecar goes on where it was, and the first report afterwards says that all is well."""
    same = report()
    assert told(error, error, same, same, error, same) == [
        *(error, "wait", "wait", same, "wait", "wait", error, "wait", same, "wait")
    ]


def test_a_folder_that_cannot_be_written_is_told_once_and_waited_for():
    """A full disk has room again some day, and nothing would be synced until somebody starts the process."""
    same, full, away = report(), OSError(28, "No space left on device"), errors.Unavailable("away")
    assert told(same, full, full, same, full, away) == [
        *(same, "wait", full, "wait", "wait", same, "wait", full, "wait", away, "wait")
    ]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.Unavailable("away"), "unavailable", "away"),
        (
            OSError(28, "No space left on device", "/voices/a"),
            "local_error",
            "/voices/a: No space left on device",
        ),
    ],
)
def test_an_error_that_is_waited_for_is_json_for_programs(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: str,
    message: str,
):
    """A program that reads standard error line by line can parse each of them."""
    results: Iterator[Any] = iter([report(), error])

    def run() -> Report:
        result = next(results, Ended())
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(syncing.signal, "signal", lambda *_: None)
    arguments = Namespace(watch=True, json=True)
    with pytest.raises(Ended):
        syncing.carry_out(run, 0, arguments, lambda _: Output({}, ""))
    told = json.loads(capsys.readouterr().err)["error"]
    assert (told["code"], told["message"]) == (code, f"{message}; trying again every 0 s")


@pytest.mark.parametrize("status", [302, 401, 403, 404, 410, 413])
def test_a_proxy_that_refuses_is_waited_for_once_the_registry_was_reached(status: int):
    """While a deployment changes, a proxy may show a page of its own. The address was right before."""
    same, page = report(), foreign(status)
    assert told(same, page, page, same) == [same, "wait", page, "wait", "wait", same, "wait"]


def test_a_proxy_before_a_tts_server_is_waited_for_once_a_push_has_succeeded():
    """An ingress answers 404 while the server behind it is replaced."""
    with (
        SpeechServer("http://tts.test", transport=httpx.MockTransport(lambda _: httpx.Response(404))) as tts,
        pytest.raises(errors.InvalidRequest) as caught,
    ):
        tts.voices()
    same, page = report(), caught.value
    assert told(same, page, page, same) == [same, "wait", page, "wait", "wait", same, "wait"]


@pytest.mark.parametrize(
    "error",
    [
        foreign(302),
        foreign(404),
        no_registry("the answer is a page"),
        errors.InvalidRequest("the folder has files of others"),
        errors.PermissionDenied("no"),
        errors.InvalidApiKey("no"),
        errors.ProfileUnknown("no"),
        OSError(28, "No space left on device"),
    ],
)
def test_what_waiting_does_not_mend_ends_the_watch(error: Exception):
    """Whoever runs the process sees the exit code, and starts it again or mends the cause."""

    def run() -> Report:
        raise error

    with pytest.raises(type(error)) as caught:
        Watch(run=run, wait=pytest.fail, on_report=pytest.fail, on_error=pytest.fail).forever()
    assert caught.value is error
