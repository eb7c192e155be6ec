"""Tests of a transfer: what it waits for, what ends it, and what concerns one voice only."""

import signal
import threading
import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from speaker_registry import RegistryClient
from speaker_registry.cli.moving import _text
from speaker_registry.cli.progress import PauseNotices
from speaker_registry.errors import InvalidRequest, RateLimited, SpeakerRegistryError, Unavailable
from speaker_registry.moving import faults
from speaker_registry.moving.candidates import Candidate, Source, Texts
from speaker_registry.moving.faults import Pauses
from speaker_registry.moving.transfer import Registering, Report, Result, Transfer
from speaker_registry.names import parse_speaker_name
from tests.unit.sdk.fake_registry import URL, FakeRegistry, error_answer


def task(name: str, source: Source = b"clip") -> Registering:
    texts = Texts(consent="c")
    return Registering(Candidate(name=parse_speaker_name(name), where=name, texts=texts, load=lambda: source))


def transferred(registry: FakeRegistry, *names: str) -> Report:
    client = RegistryClient(URL, transport=httpx.MockTransport(registry), retries=0)
    return Transfer(client, jobs=1).run([task(name) for name in names])


def test_a_request_to_come_back_later_is_obeyed():
    """The transfer waits as long as the registry asks. Without that, a rate limit would lose voices."""
    registry, paused = FakeRegistry(), list[float]()
    registry.faults.extend([error_answer(429, "rate_limited", headers={"retry-after": "0.2"})] * 2)
    client = RegistryClient(URL, transport=httpx.MockTransport(registry), retries=0)
    began = time.monotonic()
    report = Transfer(client, jobs=1, on_pause=lambda _, seconds: paused.append(seconds)).run(
        [task("a"), task("b")]
    )
    assert (report.count("registered"), report.stopped) == (2, None)
    assert time.monotonic() - began >= 0.4
    assert paused == pytest.approx([0.2, 0.2])


def test_a_pause_that_several_threads_hear_of_is_one():
    """Each of them is told at about the same time, and the report of the pause should not repeat."""
    now, paused = [1000.0], list[float]()
    transfer = Transfer(
        RegistryClient(URL), clock=lambda: now[0], on_pause=lambda _, seconds: paused.append(seconds)
    )
    for seconds in (60.0, 60.0, 30.0):
        transfer._ask_to_pause(RateLimited("slower", retry_after_seconds=seconds), seconds)
        now[0] += 0.5
    assert paused == [60.0, 0.5]


def test_a_pause_that_gets_longer_is_announced_with_what_the_registry_asks(
    capsys: pytest.CaptureFixture[str],
):
    """The notice would otherwise name only the seconds that are added."""
    transfer = Transfer(RegistryClient(URL), clock=lambda: 1000.0, on_pause=PauseNotices())
    for seconds in (2.0, 60.0, 60.0):
        transfer._ask_to_pause(RateLimited("slower", retry_after_seconds=seconds), seconds)
    assert capsys.readouterr().err == "speaker-registry: waiting 60 s, as the registry asks: slower\n"


@pytest.mark.parametrize("after", ["3600", "999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_pause_of_hours_is_not_begun(after: str):
    """A nightly job should fail with the registry's reason, instead of waiting for the end of maintenance."""
    registry, slept = FakeRegistry(), list[float]()
    registry.faults.append(error_answer(503, "unavailable", "in maintenance", headers={"retry-after": after}))
    report = transferred(registry, "a", "b")
    assert str(report.stopped) == "in maintenance"
    assert (report.results, len(registry.requests)) == ((), 1)

    def call() -> None:
        raise report.stopped or AssertionError

    with pytest.raises(Unavailable, match="in maintenance"):
        Pauses(sleep=slept.append).retry(call)
    assert slept == []


def test_pauses_are_announced_once_they_add_up(capsys: pytest.CaptureFixture[str]):
    """A store that is full makes an import wait again and again, a few seconds each time."""
    answers: list[Exception] = [Unavailable("the store\nis full", retry_after_seconds=2.0)] * 4
    answers.append(RateLimited("slower", retry_after_seconds=60.4))

    def call() -> str:
        if answers:
            raise answers.pop(0)
        return "voice"

    assert Pauses(on_pause=PauseNotices(), sleep=lambda _: None).retry(call) == "voice"
    assert capsys.readouterr().err.splitlines() == [
        "speaker-registry: waiting 2 s, as the registry asks: the store\\nis full",
        "speaker-registry: waiting 61 s, as the registry asks: slower",
    ]


def test_a_pause_that_several_threads_are_asked_for_is_announced_once(capsys: pytest.CaptureFixture[str]):
    """The threads of an import share the client, which pauses for each of their requests."""
    now = [1000.0]
    notices = PauseNotices(clock=lambda: now[0])
    for jitter in (0.3, 0.1, 3.5):
        notices(RateLimited("slower", retry_after_seconds=20.0), 20.0 + jitter)
        now[0] += 0.1
    assert capsys.readouterr().err.count("waiting 20 s") == 1
    now[0] += 40.0
    notices(RateLimited("slower", retry_after_seconds=20.0), 20.0)
    assert "waiting 20 s" in capsys.readouterr().err


def test_short_pauses_that_are_far_apart_are_not_announced(capsys: pytest.CaptureFixture[str]):
    """A sync that goes on for days would otherwise announce a pause of two seconds now and then."""
    now = [1000.0]
    notices = PauseNotices(clock=lambda: now[0])
    for after in (61.0, 61.0, 61.0, 59.0, 59.0):
        assert capsys.readouterr().err == ""
        now[0] += after
        notices(Unavailable("full", retry_after_seconds=2.0), 2.0)
    assert "waiting 2 s" in capsys.readouterr().err


def test_a_pause_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """A limit that never recovers ends the transfer, instead of hanging forever. Every announced pause is
    made.
    """
    monkeypatch.setattr(faults, "MAX_PAUSES", 3)
    registry, paused = FakeRegistry(), list[float]()
    registry.faults.extend([error_answer(429, "rate_limited", headers={"retry-after": "0.01"})] * 4)
    client = RegistryClient(URL, transport=httpx.MockTransport(registry), retries=0)
    transfer = Transfer(client, jobs=1, on_pause=lambda _, seconds: paused.append(seconds))
    report = transfer.run([task("a"), task("b")])
    assert report.stopped is not None
    assert (report.stopped.code, report.results) == ("rate_limited", ())
    assert (len(registry.requests), len(paused)) == (4, 3)


def test_only_an_answer_that_is_missing_counts_as_one():
    """A rate limit says nothing about the voice, so it must not use up the few pauses that one voice gets."""
    busy = Unavailable("busy", retry_after_seconds=0.0)
    answers: list[Exception] = [RateLimited("slower", retry_after_seconds=0.0)] * 10 + [busy] * 3

    def call() -> str:
        if answers:
            raise answers.pop(0)
        return "voice"

    assert Pauses().retry(call, max_unavailable=3) == "voice"
    answers.extend([busy] * 5)
    with pytest.raises(Unavailable):
        Pauses().retry(call, max_unavailable=3)
    assert len(answers) == 1, "it was asked four times"


@pytest.mark.parametrize(
    "fault",
    [
        error_answer(401, "invalid_api_key"),
        error_answer(403, "permission_denied"),
        error_answer(503, "unavailable"),
        httpx.ConnectError("nobody"),
    ],
)
def test_what_would_refuse_every_voice_ends_the_transfer(fault: httpx.Response | Exception):
    """A wrong key would otherwise be tried once for each of a hundred thousand voices."""
    registry = FakeRegistry()
    registry.faults.append(fault)
    report = transferred(registry, "a", "b")
    assert report.stopped is not None
    assert (report.results, len(registry.requests)) == ((), 1)


@pytest.mark.parametrize("code", ["voice_damaged", "voice_unreadable"])
def test_a_voice_that_cannot_be_read_is_refused_alone(code: str):
    """One damaged voice in the registry must not keep the others out."""
    registry = FakeRegistry()
    registry.faults.append(error_answer(503, code))
    report = transferred(registry, "a", "b")
    assert [(one.name, one.state) for one in report.results] == [("a", "refused"), ("b", "registered")]


@pytest.mark.parametrize(
    ("value", "state", "answer", "expected"),
    [
        (1.0, "ready", None, "unchanged"),
        (2.0, "ready", None, "planned"),
        (1.0, "failed", None, "planned"),
        (1.0, "ready", error_answer(403, "permission_denied"), "planned"),
    ],
    ids=["equal", "different", "without an artifact", "without the right to read it"],
)
def test_a_dry_run_tells_which_embeddings_are_there(
    value: float, state: str, answer: httpx.Response | None, expected: str
):
    """The import itself sends an embedding, and the registry answers that it is there."""
    registry = FakeRegistry()
    registry.add_version("alice", state, source="embedding", consent="c")
    client = RegistryClient(URL, transport=httpx.MockTransport(registry), retries=0)
    if answer is not None:
        versions = registry(httpx.Request("GET", f"{URL}/v1/voices/alice/versions"))
        registry.faults.extend([versions, answer])
    embedding = np.full(192, value, np.float32)
    report = Transfer(client, dry_run=True, jobs=1).run([task("alice", embedding)])
    assert [result.state for result in report.results] == [expected]


def test_results_keep_the_order_of_the_voices():
    """The report is in the order of the folder, whichever upload finishes first."""
    client = RegistryClient(URL, transport=httpx.MockTransport(FakeRegistry()))
    names = [f"v{number}" for number in range(20)]
    report = Transfer(client, jobs=8).run([task(name) for name in names])
    assert [one.name for one in report.results] == names


def test_a_mistake_in_the_code_is_raised_and_not_reported_as_a_refusal():
    """An unexpected error ends the transfer with its traceback."""

    class Broken:
        where = title = "x"

        def run(self, client: RegistryClient, *, dry_run: bool) -> Result:
            raise ZeroDivisionError

    client = RegistryClient(URL, transport=httpx.MockTransport(FakeRegistry()))
    with pytest.raises(ZeroDivisionError):
        Transfer(client).run([Broken(), task("a")])


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", "ä"])
def test_an_idempotency_key_that_no_header_takes_is_refused(key: str):
    """A key with a line break would begin another header."""
    client = RegistryClient(URL, transport=httpx.MockTransport(FakeRegistry()))
    with pytest.raises(SpeakerRegistryError, match="1 to 255 printable ASCII"):
        client.register("a", b"x", consent="c", idempotency_key=key)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise, also where whoever started the tests has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_finishes_what_is_under_way_and_begins_nothing_more():
    """Ctrl-C ends an import soon, and cuts off no upload that has begun."""
    begun, ended = [], []

    class Slow:
        where = title = "x"

        def run(self, client: RegistryClient, *, dry_run: bool) -> Result:
            begun.append(1)
            if len(begun) == 3:  # when both threads run, the main one does nothing but wait for them
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.2)
            ended.append(1)
            return Result(where="x", state="unchanged")

    client = RegistryClient(URL, transport=httpx.MockTransport(FakeRegistry()))
    with pytest.raises(KeyboardInterrupt):
        Transfer(client, jobs=2).run([Slow() for _ in range(100)])
    assert 1 <= len(begun) == len(ended) < 100


def test_many_voices_that_are_refused_for_one_reason_take_one_line():
    """A table without consents would otherwise hide the other reasons among hundreds of equal lines."""
    missing = [
        Result(where=f"line {line}", state="refused", error=InvalidRequest("there is no consent"))
        for line in range(2, 202)
    ]
    other = Result(where="line 300", name="Bob", state="refused", error=InvalidRequest("too short"))
    noted = [
        Result(where=f"{number}.json", name=f"v{number}", state="registered", notes=("ids are others",))
        for number in range(20)
    ]
    text = _text(Report(results=(*missing, other, *noted)), 0, dry_run=False)
    assert text.count("there is no consent") == 1
    assert "line 2 and 199 more" in text
    assert "line 300" in text
    assert text.splitlines()[-1] == "v0 and 19 more  ids are others"
