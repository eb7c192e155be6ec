"""`python -m services.registry_api new-key`: the first key of a registry that others run."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from services.registry_api import commands
from services.registry_api.__main__ import main
from services.registry_api.keys.api_keys import parse_token


@pytest.mark.processes
def test_the_file_of_a_new_key_is_its_owners_alone(tmp_path: Path):
    """Other users of the machine would otherwise have all rights, whatever the umask is."""
    path = tmp_path / "bootstrap-key"
    made = subprocess.run(
        [sys.executable, "-m", "services.registry_api", "new-key", "--out", str(path)],
        umask=0,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert parse_token(path.read_text().strip())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "sreg_" not in made.stdout + made.stderr, "it is in the file alone"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["file", "link to nothing", "folder"])
def test_what_is_there_already_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str):
    """It may be the key that a registry runs with, or lead somewhere else."""
    path = tmp_path / "bootstrap-key"
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    assert main(["new-key", "--out", str(path)]) == 1
    assert f"{path} exists already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]
    assert kind != "file" or path.read_text() == "mine"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One line says what is wrong with the file."""
    path = tmp_path / "missing" / "bootstrap-key"
    assert main(["new-key", "--out", str(path)]) == 1
    said = capsys.readouterr().err
    assert said == f"new-key: {path}: No such file or directory\n"


def test_without_a_file_it_is_printed(capsys: pytest.CaptureFixture[str]):
    """A caller may hand the key on to a store of secrets."""
    assert main(["new-key"]) == 0
    said = capsys.readouterr()
    assert parse_token(said.out.removesuffix("\n"))
    assert said.err == ""


@pytest.mark.parametrize("words", [["nonsense"], ["new-key", "--output", "x"], ["new-key", "x"]])
def test_other_words_are_refused_with_what_is_accepted(capsys: pytest.CaptureFixture[str], words: list[str]):
    """A slip must not start a server."""
    assert main(words) == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["new-key", "--help"]])
def test_its_help_is_shown(capsys: pytest.CaptureFixture[str], words: list[str]):
    """Also where there are no settings yet."""
    assert main(words) == 0
    assert "new-key" in capsys.readouterr().out


@pytest.mark.processes
def test_a_key_that_cannot_be_printed_is_no_success():
    """A script would otherwise store an empty secret. One line says why."""
    with Path("/dev/full").open("w") as full:
        made = subprocess.run(
            [sys.executable, "-m", "services.registry_api", "new-key"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    said = "new-key: the key could not be printed: No space left on device\n"
    assert (made.returncode, made.stderr) == (1, said)


class InterruptedImport:
    """A finder of modules in whose search for `sweep` Ctrl-C is pressed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.endswith(".commands.sweep"):
            raise KeyboardInterrupt


def test_ctrl_c_while_a_command_is_imported_ends_silently(monkeypatch: pytest.MonkeyPatch):
    """It would otherwise show a traceback of whichever library was being imported."""
    monkeypatch.delitem(sys.modules, commands.__name__ + ".sweep", raising=False)
    monkeypatch.delattr(commands, "sweep", raising=False)
    monkeypatch.setattr(sys, "meta_path", [InterruptedImport(), *sys.meta_path])
    assert main(["sweep"]) == 130
