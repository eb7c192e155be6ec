"""The command for benchmarks names them all, and refuses what it does not know before it runs any."""

from pathlib import Path

import pytest

from benchmarks import __main__ as command

FOLDER = Path(command.__file__).parent


def test_every_benchmark_can_be_named():
    runnable = {
        path.stem
        for path in FOLDER.glob("*.py")
        if "def main() -> bool:" in path.read_text() and not path.stem.startswith("_")
    }
    assert runnable == {*command.DEFAULT, *command.BY_NAME}


@pytest.mark.parametrize("arguments", [["--help"], ["nonesuch"], ["--nonesuch"]])
def test_neither_help_nor_a_mistake_runs_one(arguments, monkeypatch):
    monkeypatch.setattr(command.importlib, "import_module", lambda name: pytest.fail(f"{name} was loaded"))
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == (0 if arguments == ["--help"] else 2)
