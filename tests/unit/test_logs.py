"""Tests of what log lines contain, after a crash and otherwise."""

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

CRASH = """
import structlog
from services.shared.telemetry.logs import configure_logs

configure_logs()

def extract(ref_text):
    raise ValueError("no such thing")

try:
    extract("What nobody else may read.")
except ValueError:
    structlog.get_logger().exception("job.crashed", job_id="job_1")
"""


UNCAUGHT = """
import logging
import sys
import threading
import warnings

own = logging.getLogger("library")
own.addHandler(logging.StreamHandler())
own.propagate = False
from services.shared.telemetry.logs import configure_logs

configure_logs()
own.warning("in its own form")
warnings.warn("out of date")

def fail(ref_text):
    raise ValueError("no such thing")

thread = threading.Thread(target=fail, args=("What nobody else may read.",), name="clip")
thread.start()
thread.join()
fail("What nobody else may read.")
"""

LEVELS = """
import logging
import sys
import structlog
from services.shared.telemetry.logs import configure_logs

configure_logs(sys.argv[1])
loggers = {name: logging.getLogger(name) for name in ("library", "httpx")}
for name, logger in {"ours": structlog.get_logger(), **loggers}.items():
    for level in ("debug", "info", "warning"):
        getattr(logger, level)(f"{name} {level}")
"""

UNHEARD = """
import os
import sys
import structlog
from services.shared.telemetry.logs import configure_logs

configure_logs()
reading, writing = os.pipe()
os.dup2(writing, 2)
os.close(reading)
structlog.get_logger().info("nobody hears this")
structlog.get_logger().error("nor this")
print("and on it goes")
"""


def run(program: str, *words: str, status: int = 0) -> list[dict[str, Any]]:
    """Its log."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.processes
def test_what_nobody_caught_and_what_libraries_say_takes_the_same_form():
    """A line that is no JSON is lost, or stops whatever collects them; and a traceback may quote."""
    events = run(UNCAUGHT, status=1)
    assert [(one["event"].partition(":")[0], one["level"]) for one in events] == [
        ("in its own form", "warning"),
        ("<string>", "warning"),
        ("thread.crashed", "critical"),
        ("process.crashed", "critical"),
    ]
    assert "UserWarning: out of date" in events[1]["event"]
    assert events[2]["thread"] == "clip"
    for crash in events[2:]:
        assert crash["exception"][0]["exc_value"] == "no such thing"
    assert "nobody" not in json.dumps(events)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("DEBUG", {"ours": 3, "library": 2, "httpx": 1}),
        ("INFO", {"ours": 2, "library": 2, "httpx": 1}),
        ("WARNING", {"ours": 1, "library": 1, "httpx": 1}),
        ("ERROR", {}),
    ],
)
def test_the_level_is_ours_and_libraries_say_no_more_than_we_do(level: str, expected: dict[str, int]):
    """The debug lines of libraries may quote headers, which are not wanted in the log."""
    said = Counter(event["event"].partition(" ")[0] for event in run(LEVELS, level))
    assert said == expected


@pytest.mark.processes
def test_where_nobody_reads_the_log_the_work_goes_on():
    """The process that started this one may have ended before it, and a disk may be full."""
    done = subprocess.run([sys.executable, "-c", UNHEARD], capture_output=True, text=True, check=False)
    assert done.stdout == "and on it goes\n", done.stderr


@pytest.mark.processes
def test_a_crash_is_logged_with_where_it_happened_and_without_what_was_in_hand():
    """Local variables hold transcripts, audio and keys; a log is kept longer and read by more people."""
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=True)
    event = json.loads(done.stderr)
    assert (event["event"], event["job_id"], event["level"]) == ("job.crashed", "job_1", "error")
    assert event["exception"][0]["exc_type"] == "ValueError"
    assert [frame["name"] for frame in event["exception"][0]["frames"]] == ["<module>", "extract"]
    assert "nobody" not in done.stderr
