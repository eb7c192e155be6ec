"""What the registry says is gone leaves memory and the directory, whatever goes wrong at that moment."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speaker_registry import disk_cache
from speaker_registry.artifact import Artifact
from speaker_registry.cache import ArtifactCache, Key
from speaker_registry.disk_cache import DiskCache
from tests.unit.sdk.fake_registry import ECAPA, FakeTime, artifact_file

FILES = {name: artifact_file(name) for name in ("alice", "bob")}
NEW_FILE = artifact_file("alice", width=7)


def key(speaker: str = "alice", reference: int | str = "default") -> Key:
    return Key("s", speaker, reference, ECAPA)


def add(
    cache: ArtifactCache,
    speaker: str = "alice",
    file: bytes | None = None,
    reference: int | str = "default",
) -> None:
    file = file or FILES[speaker]
    cache.add(key(speaker, reference), Artifact.parse(file), cache.now(), file)


def lose_refs(directory: Path) -> None:
    """Leave files that no ref names, as a damaged file system does."""
    for ref in (directory / "refs").iterdir():
        ref.unlink()


def left(directory: Path) -> list[bytes]:
    """Return the contents of the files of artifacts that the directory holds."""
    return [path.read_bytes() for path in (directory / "blobs").iterdir()]


@pytest.mark.parametrize("max_disk_bytes", [10**6, 10 * len(NEW_FILE) - 1], ids=["kept", "too large"])
def test_a_file_that_is_replaced_leaves_the_directory(tmp_path: Path, max_disk_bytes: int):
    """The voice may have been deleted, and its name registered again for another person."""
    cache = ArtifactCache(directory=tmp_path, max_disk_bytes=max_disk_bytes)
    small, is_kept = artifact_file("alice", width=1), max_disk_bytes == 10**6
    add(cache, file=small)
    assert left(tmp_path) == [small]
    add(cache, file=NEW_FILE)
    assert left(tmp_path) == ([NEW_FILE] if is_kept else [])


def test_a_file_stays_as_long_as_another_ref_of_its_voice_names_it(tmp_path: Path):
    """An engine that is pinned to a version also starts without the registry."""
    cache = ArtifactCache(directory=tmp_path)
    add(cache, reference=1)
    add(cache)
    add(cache, file=NEW_FILE)
    assert sorted(left(tmp_path)) == sorted([FILES["alice"], NEW_FILE])
    another = ArtifactCache(directory=tmp_path)
    another.recall(key(reference=1))
    assert another.held(key(reference=1)) is not None
    add(cache, file=NEW_FILE, reference=1)
    assert left(tmp_path) == [NEW_FILE]


def forget_while_locked(cache: ArtifactCache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget a voice while another process holds the lock. The file of an earlier version, which no ref
    names, is left.
    """
    monkeypatch.setattr(disk_cache, "_LOCK_TRIES", 1)
    add(cache)
    lose_refs(directory)
    add(cache, file=NEW_FILE)
    with DiskCache(directory, 10**6)._lock():
        cache.forget_speaker("s", "alice")
    assert left(directory) == [FILES["alice"]]


def test_earlier_versions_go_when_the_lock_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another process may make room at that moment, or be stopped."""
    cache = ArtifactCache(directory=tmp_path)
    forget_while_locked(cache, tmp_path, monkeypatch)
    add(cache, "bob")
    assert left(tmp_path) == [FILES["bob"]]


@pytest.mark.parametrize("then", ["opened", "told of a voice that it does not have"])
def test_earlier_versions_go_although_the_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
):
    """No ref names them any more, so only a look at all files finds them."""
    cache, another = (ArtifactCache(directory=tmp_path) for _ in range(2))
    forget_while_locked(cache, tmp_path, monkeypatch)
    if then == "opened":
        ArtifactCache(directory=tmp_path)
    else:
        another.forget_speaker("s", "carol")
    assert left(tmp_path) == []
    assert list((tmp_path / "refs").iterdir()) == []


def test_the_file_of_a_damaged_ref_goes_with_its_voice(tmp_path: Path):
    """The ref is removed when it is read, and its file must be found nevertheless."""
    cache = ArtifactCache(directory=tmp_path)
    add(cache)
    [ref] = (tmp_path / "refs").iterdir()
    ref.write_text("damaged")
    another = ArtifactCache(directory=tmp_path)
    another.recall(key())
    another.forget_speaker("s", "alice")
    assert left(tmp_path) == []


def test_a_directory_whose_lock_is_held_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk_cache, "_LOCK_TRIES", 1)
    cache = ArtifactCache(directory=tmp_path)
    add(cache)
    with DiskCache(tmp_path, 10**6)._lock():
        cache.forget_speaker("s", "alice")
        assert ArtifactCache(directory=tmp_path).held(key()) is None


@pytest.mark.parametrize(
    "forget", [lambda cache: cache.forget_speaker("s", "alice"), lambda c: c.forget(key())]
)
def test_a_removal_that_failed_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: Callable[[ArtifactCache], None]
):
    """A file system may be read-only for a while."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    cache = ArtifactCache(directory=tmp_path)
    add(cache)
    with monkeypatch.context() as read_only:
        read_only.setattr(os, "unlink", refuse)
        forget(cache)
        add(cache, "bob")
    assert cache.stats().disk_errors == 2
    assert left(tmp_path) == [FILES["alice"]]
    add(cache, "bob")
    assert left(tmp_path) == [FILES["bob"]]
    add(cache)
    cache.forget_speaker("s", "bob")
    assert left(tmp_path) == [FILES["alice"]]


def test_failed_removals_are_remembered_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk_cache, "_MAX_OVERDUE", 3)
    disk = DiskCache(tmp_path / "cache", 10**6)
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("not a directory")
    for number in range(5):
        with pytest.raises(OSError, match="Not a directory"):
            disk.forget("s", f"voice{number}")
    assert len(disk._overdue) == 3


@pytest.mark.parametrize("interruption", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()], ids=type)
def test_a_store_that_was_interrupted_leaves_no_file_that_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
):
    """The disk may be full after one of its two files, or the process may be killed between them."""
    writes: list[str] = []
    write = disk_cache._write

    def write_once(folder: int, name: str, data: bytes) -> None:
        if writes:
            raise interruption
        writes.append(name)
        write(folder, name, data)

    cache, another = (ArtifactCache(directory=tmp_path) for _ in range(2))
    with monkeypatch.context() as interrupted:
        interrupted.setattr(disk_cache, "_write", write_once)
        with contextlib.suppress(KeyboardInterrupt):
            add(cache)
    another.recall(key())
    assert another.held(key()) is None
    another.forget_speaker("s", "alice")
    assert left(tmp_path) == []


@pytest.mark.parametrize("method", ["store", "artifact"])
def test_what_is_gone_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
):
    """One thread waits for the directory while another one is told that the voice is gone."""
    time = FakeTime()
    cache = ArtifactCache(clock=time, directory=tmp_path)
    if method == "artifact":
        add(ArtifactCache(clock=time, directory=tmp_path))
    slow = getattr(DiskCache, method)

    def told_meanwhile(disk: DiskCache, *arguments: Any) -> Any:
        time.now += 1
        if method == "store":
            cache.forget_speaker("s", "alice")
        result = slow(disk, *arguments)
        if method == "artifact":
            cache.forget_speaker("s", "alice")
        return result

    monkeypatch.setattr(DiskCache, method, told_meanwhile)
    if method == "store":
        add(cache)
    else:
        cache.recall(key())
    assert cache.held(key()) is None
    assert left(tmp_path) == []
    assert list((tmp_path / "refs").iterdir()) == []
