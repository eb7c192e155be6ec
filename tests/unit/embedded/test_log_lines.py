"""Tests of what a terminal shows of the processes' log lines."""

import json
import logging

from services.embedded.log_lines import coloured, level, parse, readable, reason, worth_showing

PUBLISHED = {
    "event": "artifact.published",
    "level": "info",
    "timestamp": "2026-01-01T00:00:00Z",
    "seconds": 1.2,
}
CRASHED = {
    "event": "extraction.crashed",
    "level": "error",
    "exception": [{"exc_type": "RuntimeError", "exc_value": "no memory", "frames": [{"lineno": 1}]}],
}


def test_an_event_becomes_one_line_with_its_fields():
    """The line shows the time, the process, the event and the other fields in their order."""
    line = readable("worker", PUBLISHED)
    assert line[8:] == " worker   artifact.published  seconds=1.2"


def test_digests_and_ids_are_shortened():
    """Eight digits tell two of them apart; sixty-four fill a line."""
    line = readable("api", {**PUBLISHED, "fingerprint": "sha256:" + "ab12" * 16, "job_id": "job_" + "0" * 32})
    assert "fingerprint=sha256:ab12ab12… " in line
    assert line.endswith("job_id=job_" + "0" * 32), "an id is what one pastes into the next command"


def test_a_traceback_is_told_by_its_last_line():
    """The frames are in the JSON for who needs them."""
    assert readable("worker", CRASHED).endswith("RuntimeError: no memory")
    assert reason(CRASHED) == "RuntimeError: no memory"


def test_characters_that_control_a_terminal_are_escaped():
    """Clients choose what some fields hold. Only a traceback takes several lines."""
    odd = {**PUBLISHED, "path": "/v1/\x1b[2J\u202e\r\n", "traceback": "Traceback:\n  \x1b]0;title"}
    line, *trace = readable("api", odd).split("\n")
    assert line.endswith(r" path=/v1/\x1b[2J\u202e\r\n")
    assert trace == ["Traceback:", r"  \x1b]0;title"]
    assert reason({"event": "worker.cannot_start", "reason": "no \x1bweights"}) == r"no \x1bweights"


def test_a_reason_given_comes_before_all_else():
    """It was written for whoever has to act on it."""
    assert reason({"event": "worker.cannot_start", "reason": "no weights", "error": "x"}) == "no weights"


def test_libraries_are_heard_only_when_something_is_wrong():
    """'Waiting for application startup.' helps nobody; 'address already in use' does."""
    assert worth_showing(PUBLISHED)
    assert not worth_showing({"event": "Waiting for application startup.", "level": "info"})
    assert worth_showing({"event": "[Errno 98] address already in use", "level": "error"})


def test_what_is_no_event_is_not_taken_for_one():
    """A traceback on standard error, or a library that prints JSON, must not end the listening."""
    assert parse(json.dumps(PUBLISHED)) == PUBLISHED
    assert [parse(line) for line in ("Traceback:", '{"a": 1}', "[1]", "3", "")] == [None] * 5


def test_an_unknown_level_counts_as_information():
    """A made-up word must not make a line disappear or raise."""
    assert level({"event": "x", "level": "loud"}) == logging.INFO


def test_only_trouble_is_coloured():
    """A colour that is always there says nothing."""
    assert coloured("fine", logging.INFO) == "fine"
    assert coloured("odd", logging.WARNING) == "\033[33modd\033[0m"
    assert coloured("bad", logging.ERROR) == "\033[31mbad\033[0m"
