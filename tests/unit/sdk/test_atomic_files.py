"""Tests of files that are replaced whole, and of what killed processes leave beside them."""

import errno
import os
import resource
import time
from pathlib import Path

import pytest

from speaker_registry.atomic_files import remove_abandoned, replacing


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
