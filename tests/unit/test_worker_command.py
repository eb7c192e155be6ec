"""Tests of the output of `speaker-registry-worker`. Other tests run its work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import services.extractor_worker
from services.extractor_worker.__main__ import main

PACKAGE = Path(services.extractor_worker.__file__).parent


def said_by(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.extractor_worker", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.processes
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_its_help_says_what_it_does_and_how_it_ends(word: str):
    """The help is printed without torch, which takes seconds to load, and without starting a worker."""
    done = said_by(word)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m services.extractor_worker")
    for expected in ("download", "healthy", "convert-voice", "SPEAKER_EXTRACTOR_"):
        assert expected in done.stdout
    documented = re.findall(r"^ +(\d+)  ", done.stdout.partition("exit codes:\n")[2], re.MULTILINE)
    assert sorted(map(int, documented)) == sorted({0, 2, *exit_codes()})


def exit_codes() -> list[int]:
    """Return everything in a module of the worker that is called `EXIT_…`."""
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    return [int(code) for text in sources for code in re.findall(r"^EXIT_\w+ = (\d+)$", text, re.MULTILINE)]


@pytest.mark.processes
def test_the_help_of_a_command_is_its_own():
    """`download` has options."""
    assert "--profiles" in said_by("download", "--help").stdout
    assert "VOICE.safetensors" in said_by("convert-voice", "--help").stdout
    assert said_by("healthy", "--help").returncode == 0


@pytest.mark.parametrize("words", [["nonsense"], ["--nonsense"], ["healthy", "now"]])
def test_other_words_are_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]):
    """A slip must not start a worker."""
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("usage: ")
