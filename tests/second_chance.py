"""Runs pytest, and runs the tests that failed once more at the end, alone and in one process.

    python -m tests.second_chance [PYTEST ARGUMENTS]

If all of them pass the second time, the run is green and prints `FLAKY test::name` with the first failure of
each. The run is red if a test fails twice, or if more tests fail than `AT_MOST`. A flaky test is a bug. The
second chance only keeps it from holding up a change that it has nothing to do with, and the printed list says
what to mend next.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

AT_MOST = 10
"""If more tests fail than this, they are not run again, because so many failures have one cause."""


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments and return the exit status of the run, which is pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        run = [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={folder}/cache"]
        status = subprocess.run([*run, f"--junitxml={report}"], check=False).returncode
        failed = _failed_tests(Path(folder, "cache"))
        if status != pytest.ExitCode.TESTS_FAILED or not failed:
            return status
        if len(failed) > AT_MOST:
            print(f"No second chance: {len(failed)} tests failed, at most {AT_MOST} are run again.")
            return status
        print(f"A second chance, alone, for {len(failed)} of the tests.", flush=True)
        again = [*run, "-n", "0", "--last-failed", "--last-failed-no-failures=none"]
        second = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=False)
        if second.returncode == pytest.ExitCode.OK:
            reasons = _first_failures(report)
            for test in failed:
                print(f"FLAKY {test}\n    {reasons.get(test, 'no reason was reported')}")
        print(second.stdout, end="", flush=True)  # last, because a run ends with pytest's summary
        return second.returncode


def _failed_tests(cache: Path) -> list[str]:
    """Return the node ids of the tests that failed in the run that used this cache folder. There are none if
    anything else failed, too: a file that cannot be read, or processes that do not find the same tests.
    """
    path = cache / "v/cache/lastfailed"
    failed = sorted(json.loads(path.read_text())) if path.exists() else []
    return failed if all("::" in one for one in failed) else []


def _first_failures(report: Path) -> dict[str, str]:
    """Return the first line of each failure in a JUnit report, by the test's node id."""
    reasons = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failures = [*case.findall("failure"), *case.findall("error")]
        if failures:
            path = case.attrib["classname"].replace(".", "/") + ".py"
            lines = failures[0].attrib.get("message", "").splitlines() or [""]
            reasons[f"{path}::{case.attrib['name']}"] = lines[0]
    return reasons


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
