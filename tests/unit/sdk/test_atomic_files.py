"""Tests of files that are replaced whole, and of what killed processes leave beside them."""

import errno
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from speaker_registry.atomic_files import remove_abandoned, replacing


def no_link(*_: object) -> None:
    """Stand in for `os.link` on a file system that has no hard links."""
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


HARD_LINKS = [pytest.param(os.link, id="hard links"), pytest.param(no_link, id="no hard links")]


def left_beside(path: Path) -> Path:
    """Leave what a process leaves that is killed while it writes `path`."""
    left = path.with_name(f".{path.name}.01234567.part")
    left.write_bytes(b"half")
    return left


def age(folder: Path) -> None:
    """Have all files of a folder look as if they had been written an hour ago."""
    for file in folder.iterdir():
        os.utime(file, (time.time() - 3600,) * 2)


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path):
    """Killed exports of a large namespace would fill the disk with files that nobody sees."""
    path = tmp_path / "voices.tar"
    left, of_others = left_beside(path), left_beside(tmp_path / "others.tar")
    path.write_bytes(b"whole")
    with replacing(path) as file:
        age(tmp_path)
        remove_abandoned(path)
        assert not left.exists()
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert sorted(tmp_path.iterdir()) == sorted([path, of_others])


def test_a_file_whose_lock_may_not_be_taken_yet_stays(tmp_path: Path):
    """A process opens its file a moment before it locks it."""
    left = left_beside(tmp_path / "voices.tar")
    remove_abandoned(tmp_path / "voices.tar")
    assert left.exists()


def test_a_folder_that_is_not_there_is_reported_when_the_file_is_written(tmp_path: Path):
    remove_abandoned(tmp_path / "gone" / "voices.tar")


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path):
    """The name of a temporary file means nothing to users."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(FileNotFoundError) as missing, replacing(tmp_path / "missing" / "voices.tar"):
        pass
    with pytest.raises(IsADirectoryError) as directory, replacing(folder):
        pytest.fail("the work that ends in the file should not begin")
    assert missing.value.filename == str(tmp_path / "missing" / "voices.tar")
    assert directory.value.filename == str(folder)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("size", [1_000, 100_000], ids=["at the end", "while it is written"])
def test_the_error_for_a_full_disk_names_the_file(tmp_path: Path, size: int):
    """Other files are written and read in the meantime, so `No space left on device` alone says little."""
    path = tmp_path / "voices.tar"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write() -> None:
        with replacing(path) as file:
            file.write(bytes(size))

    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="voices") as full:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (full.value.errno, full.value.filename) == (errno.EFBIG, str(path))
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_other_work_does_not_name_the_file(tmp_path: Path):
    """The connection to the registry may break while an archive is written."""
    with pytest.raises(OSError, match="broken") as caught, replacing(tmp_path / "voices.tar"):
        raise OSError(errno.ECONNRESET, "broken")
    assert caught.value.filename is None


@pytest.mark.parametrize("link", HARD_LINKS)
def test_a_file_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Callable[..., None]
):
    """Two exports to one new path would otherwise both succeed, and one archive would be lost."""
    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "voices.tar"

    def write() -> None:
        with replacing(path, only_new=True) as file:
            file.write(b"mine")
            path.write_bytes(b"of others")

    with pytest.raises(FileExistsError) as meanwhile:
        write()
    with pytest.raises(FileExistsError) as before, replacing(path, only_new=True):
        pytest.fail("the work that ends in the file should not begin")
    assert [str(one.value) for one in (meanwhile, before)] == [f"[Errno 17] File exists: '{path}'"] * 2
    assert path.read_bytes() == b"of others"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("link", HARD_LINKS)
def test_a_new_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Callable[..., None]):
    """Some file systems have no hard links, and a file is written there as well."""
    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "voices.tar"
    with replacing(path, only_new=True) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_link_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Renaming is for file systems without hard links, and not for those that fail."""

    def failed(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", failed)
    path = tmp_path / "voices.tar"
    with pytest.raises(OSError, match="voices") as caught, replacing(path, only_new=True) as file:
        file.write(b"whole")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rename_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The next attempt would find that the file exists."""

    def failed(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(Path, "replace", failed)
    with pytest.raises(OSError, match="error"), replacing(tmp_path / "voices.tar", only_new=True):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_although_its_temporary_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An error would say that there is no file."""

    def failed(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "unlink", failed)
    path = tmp_path / "voices.tar"
    with replacing(path, only_new=True) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path):
    """`export /dev/null --force` as root would leave a machine without /dev/null."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="only a regular file can be replaced") as caught, replacing(path):
        pytest.fail("the work that ends in the file should not begin")
    assert caught.value.filename == str(path)
    assert [one.is_fifo() for one in tmp_path.iterdir()] == [True]
