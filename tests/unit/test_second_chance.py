"""Tests that a second chance saves a run from an accident, and excuses nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import second_chance

pytestmark = pytest.mark.processes

FAILS_ONCE = """
from pathlib import Path

def test_once():
    marker = Path(__file__).with_name("seen")
    seen = marker.exists()
    marker.touch()
    assert seen, "the first time"
"""
FAILS_ALWAYS = "def test_always():\n    assert 1 == 2\n"
PASSES = "def test_good():\n    pass\n"


def run(folder: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Run the files, by their module's name, in a folder of their own."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, second_chance.__file__, "-p", "xdist", "-n", "2", *arguments]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # many plugins make the start slow
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_what_fails_once_passes_and_is_printed(tmp_path: Path):
    ran = run(tmp_path, test_flaky=FAILS_ONCE, test_good=PASSES)
    assert ran.returncode == 0, ran.stdout
    assert "FLAKY test_flaky.py::test_once\n    AssertionError: the first time" in ran.stdout
    last = ran.stdout.splitlines()[-1]
    assert last.startswith("===")
    assert "1 passed" in last


def test_what_fails_twice_is_red(tmp_path: Path):
    ran = run(tmp_path, test_flaky=FAILS_ONCE, test_bad=FAILS_ALWAYS)
    assert ran.returncode == 1, ran.stdout
    assert "FLAKY" not in ran.stdout


def test_many_failures_are_no_accident(tmp_path: Path):
    each = f"import pytest\n@pytest.mark.parametrize('number', range({second_chance.AT_MOST + 1}))\n"
    many = each + "def test_each(number):\n    assert False\n"
    ran = run(tmp_path, test_bad=many)
    assert ran.returncode == 1
    assert f"No second chance: {second_chance.AT_MOST + 1} tests failed" in ran.stdout


def test_a_green_run_runs_once(tmp_path: Path):
    ran = run(tmp_path, test_good=PASSES)
    assert ran.returncode == 0
    assert "second chance" not in ran.stdout


def test_processes_that_find_other_tests_are_no_accident(tmp_path: Path):
    """Nothing was run then, so there is nothing to run again."""
    each = "import os, pytest\n@pytest.mark.parametrize('process', [os.getpid()])\n"
    other = each + "def test_each(process):\n    pass\n"
    ran = run(tmp_path, test_other=other)
    assert ran.returncode == 1, ran.stdout
    assert "Different tests were collected" in ran.stdout
    assert "second chance" not in ran.stdout
