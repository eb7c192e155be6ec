"""Tests of the output of `speaker-registry-worker`, and of signals to a process that starts. Other tests run
the worker's work.
"""

import re
import signal
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


LOADING = """
import hashlib, sys
from importlib import import_module
from types import SimpleNamespace

def load():
    print("loading", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)  # takes minutes, in which Python runs no handler

program, module, function = sys.argv[1:]
main = import_module(program + ".__main__").main
sys.modules[program + "." + module] = SimpleNamespace(**{function: load})
main([])
"""
"""A process whose main thread is inside a library while it starts."""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "started", ["services.extractor_worker worker work", "services.registry_api commands.serve run"]
)
def test_a_process_that_is_stopped_while_it_starts_ends_at_once_with_status_0(
    started: str, number: signal.Signals
):
    """Supervisors take any other status for a crash, and there is nothing to finish yet."""
    command = [sys.executable, "-c", LOADING, *started.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "loading\n"
            process.send_signal(number)
            assert process.wait(10) == 0
        finally:
            process.kill()


WORKING = """
import os, signal, time
from services.shared.model.ending import end_on_signals

end_on_signals()
signal.signal(signal.SIGTERM, lambda *_: None)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.3)
os._exit(7)
"""
"""A worker that takes jobs, and handles signals itself."""


@pytest.mark.processes
def test_a_worker_that_takes_jobs_is_not_ended_by_a_signal():
    """It finishes its jobs first."""
    assert subprocess.run([sys.executable, "-c", WORKING], timeout=60, check=False).returncode == 7


LOGGING = """
import io, logging, os, signal
from services.shared.model.ending import end_process

class Raw(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        os.kill(os.getpid(), signal.SIGTERM)
        return len(data)

stream = io.TextIOWrapper(io.BufferedWriter(Raw()), line_buffering=True)
logging.getLogger().addHandler(logging.StreamHandler(stream))
signal.signal(signal.SIGTERM, lambda *_: end_process(0))
try:
    stream.write("a line\\n")
finally:
    os._exit(7)
"""
"""A process that gets a signal while it writes to the stream of its log."""


@pytest.mark.processes
def test_a_signal_in_the_middle_of_a_log_line_ends_a_process_with_status_0():
    """Python does not let a signal handler write out a stream whose write it has interrupted."""
    assert subprocess.run([sys.executable, "-c", LOGGING], timeout=60, check=False).returncode == 0
