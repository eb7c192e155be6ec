"""Tests of what the make targets set up before they do their own work."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


def commands(target: str, environment: Path) -> str:
    """Return what make would run for a target whose virtual environment is in this folder."""
    return output_of_make("--dry-run", target, f"VENV={environment}")


def output_of_make(*words: str) -> str:
    return subprocess.run(
        ["make", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env=environment_of_make(),
    ).stdout


def environment_of_make() -> dict[str, str]:
    """Return the environment without the flags that a make which runs the tests would hand down."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


@pytest.mark.parametrize("target", ["setup", "demo", "run"])
def test_who_only_wants_to_run_it_installs_nothing_for_tests(target: str, tmp_path: Path):
    """Those packages take as long again, and the first impression is the wait. It says what it does."""
    first = commands(target, tmp_path / "venv")
    assert "--group" not in first
    assert "pip install --disable-pip-version-check -c constraints.txt -e '.[embedded,traces]'" in first
    assert re.search('^echo "Installing what the registry needs to run into ', first, re.MULTILINE)


@pytest.mark.parametrize(
    "target", ["setup-all", "test", "test-all", "test-quick", "check", "format", "bench", "soak", "test-full"]
)
def test_what_tests_and_lint_need_is_installed_for_them(target: str, tmp_path: Path):
    """Also after `make run`, which does not bring it."""
    (tmp_path / ".installed-to-run").touch()
    assert "--group test --group lint" in commands(target, tmp_path)


def test_after_the_tests_there_is_nothing_left_to_install(tmp_path: Path):
    """A developer who has run the tests can run the registry."""
    for stamp in (".installed", ".installed-to-run"):
        (tmp_path / stamp).touch()
    for target in ("demo", "test"):
        assert "pip" not in commands(target, tmp_path)


PRETENDING = """#!/bin/sh
# As Python it makes an environment, whose pip is this script again.
echo "$0 $*" >> {log}
if [ "$1" = -m ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/pip"; else sleep 0.2; fi
"""


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_of_two_makes_only_one_installs(tmp_path: Path):
    """A newcomer starts `make run` and `make demo` in two terminals. At once, pip would write over itself,
    and one after the other, the second would wait twice as long.
    """
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(PRETENDING.format(log=log))
    python.chmod(0o700)
    words = ["make", "setup", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}"]
    makes = [subprocess.Popen(words, cwd=ROOT, env=environment_of_make()) for _ in range(2)]
    assert [make.wait(30) for make in makes] == [0, 0]
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["-m", "install", "install"]


def test_the_help_is_a_table():
    """Each explanation begins in the same column, also that of the target with the longest name."""
    said = output_of_make("help").splitlines()
    assert {line.index(line.split(maxsplit=1)[1]) for line in said} == {17}
