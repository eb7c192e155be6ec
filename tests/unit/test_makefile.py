"""Tests of what the make targets set up before they do their own work."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


def commands(target: str, environment: Path) -> str:
    """Return what make would run for a target whose virtual environment is in this folder."""
    return subprocess.run(
        ["make", "--dry-run", target, f"VENV={environment}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        # Else a make that runs the tests hands its own flags down.
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
    ).stdout


@pytest.mark.parametrize("target", ["setup", "demo", "run"])
def test_who_only_wants_to_run_it_installs_nothing_for_tests(target: str, tmp_path: Path):
    """Those packages take as long again, and the first impression is the wait. It says what it does."""
    first = commands(target, tmp_path / "venv")
    assert "--group" not in first
    assert "pip install --disable-pip-version-check -c constraints.txt -e '.[embedded,traces]'" in first
    assert first.startswith('echo "Installing what the registry needs to run into ')


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


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_two_makes_do_not_install_at_the_same_time(tmp_path: Path):
    """A newcomer starts `make run` and `make demo` in two terminals, and pip writes over itself."""
    said = commands("setup-all", tmp_path / "venv").replace("\\\n", " ").splitlines()
    writing = [line for line in said if " -m venv " in line or "pip install" in line]
    assert len(writing) == 5
    assert all(line.strip().startswith("flock . ") for line in writing), writing


def test_the_help_is_a_table():
    """Each explanation begins in the same column, also that of the target with the longest name."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    said = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True, env=environment
    ).stdout.splitlines()
    assert {line.index(line.split(maxsplit=1)[1]) for line in said} == {17}
