"""What ends up in log lines when something crashes."""

import json
import subprocess
import sys

CRASH = """
import structlog
from services.shared.logs import configure_logs

configure_logs()

def extract(ref_text):
    raise ValueError("no such thing")

try:
    extract("What nobody else may read.")
except ValueError:
    structlog.get_logger().exception("job.crashed", job_id="job_1")
"""


def test_a_crash_is_logged_with_where_it_happened_and_without_what_was_in_hand():
    """Local variables hold transcripts, audio and keys; a log is kept longer and read by more people."""
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=True)
    event = json.loads(done.stderr)
    assert (event["event"], event["job_id"], event["level"]) == ("job.crashed", "job_1", "error")
    assert event["exception"][0]["exc_type"] == "ValueError"
    assert [frame["name"] for frame in event["exception"][0]["frames"]] == ["<module>", "extract"]
    assert "nobody" not in done.stderr
