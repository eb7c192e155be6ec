"""Tests that a message between two processes arrives as it was sent, or not at all."""

import math
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from services.shared.audio import processes
from services.shared.audio.processes import GuardedProcess
from services.shared.audio.sandbox.refusal import Refused, TooLong, Truncated, Unsupported
from services.shared.audio.sandbox.wire import (
    Accepted,
    Malformed,
    Measurements,
    Request,
    Status,
    pack_refusal,
    receive,
    receive_verdict,
)

MEASURED = Measurements(
    status=Status.DECODED,
    finished=True,
    channels=2,
    sample_rate=48000,
    frames=96000,
    samples=96000,
    peak=0.5,
    not_finite_at=7,
    clipped=0.25,
    rms=0.125,
    declared_seconds=2.0,
    codec="pcm_s16le",
)
SOON = 5.0


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_an_answer_arrives_as_it_was_sent(line: tuple[socket.socket, socket.socket]):
    """Fields that change places would be lengths and levels of another clip."""
    line[1].sendall(MEASURED.pack())
    assert Measurements.receive(line[0], time.monotonic() + SOON) == MEASURED


def test_a_request_arrives_as_it_was_sent(line: tuple[socket.socket, socket.socket]):
    """The file as it was uploaded: nobody has looked at it before."""
    request = Request(30.0, b"data")
    line[1].sendall(request.header + b"data")
    assert Request.receive(line[0]) == request


def test_an_accepted_container_arrives_as_it_was_sent(line: tuple[socket.socket, socket.socket]):
    accepted = Accepted("webm", "opus", 2.5)
    line[1].sendall(accepted.pack())
    assert receive_verdict(line[0], time.monotonic() + SOON) == accepted


@pytest.mark.parametrize("refused", [Refused("no µ"), Unsupported("no"), Truncated("no"), TooLong("no")])
def test_a_refusal_arrives_as_it_was_sent(line: tuple[socket.socket, socket.socket], refused: Refused):
    """The kind of a refusal determines the status of the answer, so it must arrive too."""
    line[1].sendall(pack_refusal(refused))
    with pytest.raises(type(refused)) as caught:
        receive_verdict(line[0], time.monotonic() + SOON)
    assert (type(caught.value), caught.value.message) == (type(refused), refused.message)


@pytest.mark.parametrize(
    "verdict",
    [
        b"\x80" + Accepted("wav", "", 1.0).pack()[1:],
        Accepted("exe", "", 1.0).pack(),
        Accepted("wav", "<script>", 1.0).pack(),
        Accepted("wav", "", -1.0).pack(),
        Accepted("wav", "", math.inf).pack(),
        pack_refusal(Refused("no"))[:4] + b"\x09" + pack_refusal(Refused("no"))[5:],
        pack_refusal(Refused("\033[31m in a terminal")),
        pack_refusal(Refused("two\nlines")),
        pack_refusal(Refused("no"))[:-2] + b"\xff\xff",
        pack_refusal(Refused(""))[:-2] + b"\xff\xff" + bytes(0xFFFF),
    ],
    ids=["magic", "container", "codec", "length", "inf", "kind", "escapes", "lines", "not UTF-8", "too long"],
)
def test_what_is_no_verdict_is_malformed(line: tuple[socket.socket, socket.socket], verdict: bytes):
    """A file may have taken over the process that says it, and the message is shown to somebody."""
    threading.Thread(target=line[1].sendall, args=(verdict,), daemon=True).start()
    with pytest.raises(Malformed):
        receive_verdict(line[0], time.monotonic() + SOON)


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, b"\x80"), (4, b"\0"), (4, b"\x63"), (5, b"\x02"), (68, b"<"), (68, b"\xe9"), (72, b"\0")],
    ids=[
        "no magic",
        "status 0",
        "status 99",
        "neither finished nor not",
        "a name <",
        "a name \xe9",
        "a hole",
    ],
)
def test_what_is_no_answer_is_malformed(
    line: tuple[socket.socket, socket.socket], position: int, value: bytes
):
    """The codec's name ends up in a message: it must not carry anything else there."""
    answer = bytearray(MEASURED.pack())
    assert answer[68:72] == b"pcm_"
    answer[position : position + 1] = value
    line[1].sendall(answer)
    with pytest.raises(Malformed):
        Measurements.receive(line[0], time.monotonic() + SOON)


def test_half_an_answer_is_the_end(line: tuple[socket.socket, socket.socket]):
    """A process that dies while it answers has not answered."""
    line[1].sendall(MEASURED.pack()[:50])
    line[1].close()
    with pytest.raises(EOFError):
        Measurements.receive(line[0], math.inf)


def test_bytes_that_drip_in_do_not_extend_the_deadline(line: tuple[socket.socket, socket.socket]):
    """A limit per byte would be none."""
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.02):
            line[1].sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            receive(line[0], 1_000, time.monotonic() + 0.3)  # all of them would take 20 s
    finally:
        stop.set()
        thread.join()


def test_what_is_there_after_the_deadline_is_too_late(line: tuple[socket.socket, socket.socket]):
    """A process that always has one more byte ready would never be timed out."""
    line[1].sendall(b"x")
    with pytest.raises(TimeoutError):
        receive(line[0], 1, time.monotonic() - 0.001)


def test_a_clip_that_ends_with_nothing_is_answered_as_any_other(monkeypatch: pytest.MonkeyPatch):
    """An empty file: its reader may have answered and ended before the last, empty piece was sent."""
    ours, theirs = socket.socketpair()
    child = GuardedProcess(ours, os.open(os.devnull, os.O_RDONLY))
    measured = Measurements(
        status=Status.DECODED, finished=True, channels=1, sample_rate=16000, declared_seconds=0.0
    )
    sent = iter(["header"])

    def answer_and_end() -> None:
        Request.receive(theirs)
        theirs.sendall(Accepted("wav", "", 0.0).pack() + measured.pack())
        theirs.close()

    def slowly(*_: object) -> None:
        if next(sent, None) is None:
            reader.join(SOON)

    reader = threading.Thread(target=answer_and_end)
    reader.start()
    monkeypatch.setattr(processes, "wait_until", slowly)
    with ours:
        deadline = time.monotonic() + SOON
        assert child.ask(Request(30.0, b""), deadline).container == "wav"
        assert child.decoded(30.0, deadline)[0] == measured
