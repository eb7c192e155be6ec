"""The first API key of a registry on one machine: made once, whole, for its owner only."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from services.embedded.bootstrap_key import bootstrap_key_file
from services.registry_api.keys import key_file
from services.registry_api.keys.api_keys import new_token, parse_token

WORLD = "0.0.0.0"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SPEAKER_AUTH_")]:
        monkeypatch.delenv(name)


def test_a_key_is_made_once(tmp_path: Path):
    """A key that was made stays the same over every start."""
    path = bootstrap_key_file(WORLD, tmp_path)
    assert path == tmp_path / "bootstrap-key"
    text = path.read_text()
    assert parse_token(text.strip())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert bootstrap_key_file(WORLD, tmp_path) == path
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_whoever_is_stopped_while_making_it_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    """An empty file would be taken for a key by every later start."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(key_file.os, step, stop)
        with pytest.raises(KeyboardInterrupt):
            bootstrap_key_file(WORLD, tmp_path)
    assert list(tmp_path.iterdir()) == []
    path = bootstrap_key_file(WORLD, tmp_path)
    assert path
    assert parse_token(path.read_text().strip())


def test_it_is_whole_from_when_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A crash of the machine right after must not leave a name without what it names."""
    path, synced, link = tmp_path / "bootstrap-key", [], os.link

    def sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, path.exists()))

    def put_in_place(source: str, target: Path) -> None:
        assert parse_token(Path(source).read_text().strip())
        assert synced == [(Path(source).stat().st_size, False)]
        link(source, target)

    monkeypatch.setattr(key_file.os, "fsync", sync)
    monkeypatch.setattr(key_file.os, "link", put_in_place)
    bootstrap_key_file(WORLD, tmp_path)
    assert len(synced) == 2, "its folder too"


def test_of_two_starts_at_once_the_first_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, theirs, link = tmp_path / "bootstrap-key", str(new_token()), os.link

    def overtaken(source: str, target: Path) -> None:
        path.write_text(theirs)
        link(source, target)

    monkeypatch.setattr(key_file.os, "link", overtaken)
    assert bootstrap_key_file(WORLD, tmp_path) == path
    assert path.read_text() == theirs
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_key_is_needed_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No key is made either where the environment provides one."""
    assert bootstrap_key_file("127.0.0.1", tmp_path) is None
    monkeypatch.setenv("SPEAKER_AUTH_BOOTSTRAP_KEY", str(new_token()))
    assert bootstrap_key_file(WORLD, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
