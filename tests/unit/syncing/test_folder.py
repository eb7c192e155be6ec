"""The folder that `sync` writes: what it holds after each step, and which folders it leaves alone."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speaker_registry import atomic_files
from speaker_registry.errors import DigestMismatch, InvalidRequest
from speaker_registry.syncing import folder as folder_module
from speaker_registry.syncing.folder import KEPT_SECONDS, MARKER, FileName, Purpose, SyncedFolder, hash_of

INDEX = "manifest.json"
PURPOSE = Purpose(
    registry="http://registry:8300",
    registry_id="a",
    namespace="default",
    profile="qwen3-tts-0.6b",
    format="custom-voice-dir",
)
ALICE, BOB = hash_of("voice_1_alice"), hash_of("voice_2_bob")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def folder(path: Path, purpose: Purpose = PURPOSE, clock: Clock | None = None) -> SyncedFolder:
    return SyncedFolder(path, purpose, INDEX, clock or Clock())


def without(index: bytes, is_there: Callable[[str], bool]) -> bytes:
    return "\n".join(line for line in index.decode().splitlines() if is_there(line)).encode()


def sync(target: SyncedFolder, **files: tuple[str, int]) -> list[FileName]:
    """Make the folder hold these files: voice and creation time by content."""
    with target.claimed():
        target.remove_others({voice for voice, _ in files.values()}, without)
        names = [target.add(voice, at, data.encode()) for data, (voice, at) in files.items()]
        target.publish(names, "\n".join(map(str, names)).encode())
    return names


def contents(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if one.is_file()}


def data_in(path: Path) -> set[bytes]:
    return {data for name, data in contents(path).items() if FileName.parse(name)}


def test_a_folder_holds_what_it_was_given(tmp_path: Path):
    """The folder is created, and holds the files, the index and the marker."""
    path = tmp_path / "new" / "voices"
    names = sync(folder(path), a=(ALICE, 1), b=(BOB, 2))
    assert set(contents(path)) == {MARKER, INDEX, *map(str, names)}
    assert data_in(path) == {b"a", b"b"}


def test_a_file_says_whose_it_is_and_how_old():
    """vLLM-Omni reads files in the order of their names, and the last one of a voice counts."""
    names = [FileName(ALICE, at, "0" * 64) for at in (999_999_999, 1_000_000_000, 99_999_999_999)]
    assert sorted(names, key=str) == names
    assert [FileName.parse(str(name)) for name in names] == names
    assert FileName.parse("alice_c1_1000000000.safetensors") is None, "a file that vLLM-Omni itself wrote"


@pytest.mark.parametrize("created_at", [10**12, -1], ids=["late", "early"])
def test_a_time_that_no_file_name_can_tell_is_refused(tmp_path: Path, created_at: int):
    """The file would be taken for one of others, and the folder could not be synced any more."""
    target = folder(tmp_path)
    sync(target, a=(ALICE, 1))
    with pytest.raises(InvalidRequest, match=f"created at {created_at}; accepted"):
        sync(target, a=(ALICE, 1), b=(BOB, created_at))
    sync(target, a=(ALICE, 1))
    assert data_in(tmp_path) == {b"a"}


def test_a_superseded_file_stays_for_a_while(tmp_path: Path):
    """A server that is starting may have read the former index, and must find its files."""
    clock = Clock()
    target = folder(tmp_path, clock=clock)
    sync(target, old=(ALICE, 1), b=(BOB, 1))
    sync(target, new=(ALICE, 2), b=(BOB, 1))
    assert data_in(tmp_path) == {b"old", b"new", b"b"}
    clock.now += KEPT_SECONDS / 2
    sync(folder(tmp_path, clock=clock), new=(ALICE, 2), b=(BOB, 1))  # another process goes on counting
    assert data_in(tmp_path) == {b"old", b"new", b"b"}
    clock.now += KEPT_SECONDS / 2
    sync(folder(tmp_path, clock=clock), new=(ALICE, 2), b=(BOB, 1))
    assert data_in(tmp_path) == {b"new", b"b"}


def test_a_superseded_file_stays_although_the_clock_steps_back(tmp_path: Path):
    """Its time begins again then, so it neither vanishes under a starting server nor stays for hours."""
    clock = Clock()
    target = folder(tmp_path, clock=clock)
    sync(target, old=(ALICE, 1))
    sync(target, new=(ALICE, 2))
    clock.now -= 7200
    sync(target, new=(ALICE, 2))
    assert data_in(tmp_path) == {b"old", b"new"}
    clock.now += KEPT_SECONDS
    sync(target, new=(ALICE, 2))
    assert data_in(tmp_path) == {b"new"}


def test_a_file_that_comes_back_counts_again(tmp_path: Path):
    """A file that was superseded and is wanted again is not removed when its time has come."""
    clock = Clock()
    target = folder(tmp_path, clock=clock)
    for data in ("first", "second", "first"):  # of one version, as after an extraction with another encoder
        sync(target, **{data: (ALICE, 1)})
    assert data_in(tmp_path) == {b"first", b"second"}
    clock.now += KEPT_SECONDS
    sync(target, first=(ALICE, 1))
    assert data_in(tmp_path) == {b"first"}


def test_a_newer_file_than_the_one_that_counts_is_removed_at_once(tmp_path: Path):
    """A server that reads all files of the folder would take the newer version after a rollback."""
    target = folder(tmp_path)
    sync(target, new=(ALICE, 2))
    sync(target, old=(ALICE, 1))
    assert data_in(tmp_path) == {b"old"}


def test_the_files_of_a_voice_that_is_gone_are_removed_at_once(tmp_path: Path):
    """No server that starts later may read a voice that was erased, nor a superseded version of it."""
    target = folder(tmp_path)
    sync(target, first=(ALICE, 1), b=(BOB, 1))
    sync(target, second=(ALICE, 2), b=(BOB, 1))
    sync(target, b=(BOB, 1))
    assert data_in(tmp_path) == {b"b"}


def test_a_damaged_file_is_not_taken_for_intact(tmp_path: Path):
    """A file is intact if its bytes match its name. It is read again after a change, and not otherwise."""
    target = folder(tmp_path)
    [name] = sync(target, a=(ALICE, 1))
    with target.claimed():
        assert target.intact(ALICE, 1, None) == target.intact(ALICE, 1, name.sha256) == name
        assert next(target.newest_first(ALICE)) == name
        assert target.intact(ALICE, 2, None) is None
        assert target.intact(ALICE, 1, "0" * 64) is None
        assert target.intact(BOB, 1, None) is None
        (tmp_path / str(name)).write_bytes(b"damaged")
        assert target.intact(ALICE, 1, None) is None
        assert not list(target.newest_first(ALICE))
        with pytest.raises(DigestMismatch, match="do not match its name"):
            target.read(name)
    sync(target, a=(ALICE, 1))
    assert data_in(tmp_path) == {b"a"}


def test_a_damaged_file_does_not_stay_beside_the_one_that_replaces_it(tmp_path: Path):
    """The names of two files of one version do not tell which is intact, and vLLM-Omni takes the last."""
    [name] = sync(folder(tmp_path), first=(ALICE, 1))
    (tmp_path / str(name)).write_bytes(b"damaged")
    sync(folder(tmp_path), second=(ALICE, 1))
    assert data_in(tmp_path) == {b"second"}


def test_a_superseded_file_that_becomes_damaged_is_removed(tmp_path: Path):
    """A replaced file stays only for servers that are starting, and a damaged one is of no use to them."""
    target = folder(tmp_path)
    [name] = sync(target, old=(ALICE, 1))
    sync(target, new=(ALICE, 2))
    (tmp_path / str(name)).write_bytes(b"damaged")
    sync(target, new=(ALICE, 2))
    assert data_in(tmp_path) == {b"new"}


def test_the_newest_file_is_one_that_is_not_superseded(tmp_path: Path):
    """A voice that has nothing to fetch keeps the file that counts, not one that only stays for a while."""
    target = folder(tmp_path)
    sync(target, first=(ALICE, 1))
    [name] = sync(target, second=(ALICE, 1))
    with target.claimed():
        assert next(target.newest_first(ALICE)) == name


@pytest.mark.parametrize("name", ["notes.txt", INDEX, f"{ALICE}-000000000001-{'0' * 64}.safetensors", "sub"])
def test_a_folder_with_files_of_others_is_refused_and_not_touched(tmp_path: Path, name: str):
    """A wrong path on the command line must not cost anybody a file."""
    if name == "sub":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(b"precious")
    before = contents(tmp_path)
    with pytest.raises(InvalidRequest, match="not from a sync, such as"), folder(tmp_path).claimed():
        raise AssertionError("the folder was claimed")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["alice_c1_1000000000.safetensors", "manifest.json.bak", ".x.0123abcd.part"])
def test_foreign_files_in_a_folder_of_ours_are_refused_too(tmp_path: Path, name: str):
    """A server may have written an upload of its own there, which nobody else has."""
    sync(folder(tmp_path), a=(ALICE, 1))
    (tmp_path / name).write_bytes(b"precious")
    before = contents(tmp_path)
    with pytest.raises(InvalidRequest, match="not from a sync, such as"):
        sync(folder(tmp_path))
    assert contents(tmp_path) == before


def test_a_link_in_the_folder_is_refused(tmp_path: Path):
    """Nothing outside the folder is ever written to or removed."""
    path = tmp_path / "voices"
    [name] = sync(folder(path), a=(ALICE, 1))
    (path / str(name)).rename(tmp_path / "elsewhere")
    (path / str(name)).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRequest, match="not from a sync"):
        sync(folder(path))
    assert (tmp_path / "elsewhere").read_bytes() == b"a"


@pytest.mark.parametrize("field", ["registry", "registry_id", "namespace", "profile", "format"])
def test_a_folder_that_was_made_for_something_else_is_refused(tmp_path: Path, field: str):
    """A folder has one model type, and voices of two namespaces must never be mixed."""
    sync(folder(tmp_path), a=(ALICE, 1))
    before = contents(tmp_path)
    with pytest.raises(InvalidRequest, match=f"was made for the {field} "):
        sync(folder(tmp_path, PURPOSE.model_copy(update={field: "other"})))
    assert contents(tmp_path) == before


def test_a_folder_of_another_format_is_called_so_although_its_index_is_foreign(tmp_path: Path):
    """The person has named the wrong folder or format, and nobody has put a file there."""
    sync(folder(tmp_path), a=(ALICE, 1))
    without_index = SyncedFolder(tmp_path, PURPOSE.model_copy(update={"format": "speaker-samples"}), None)
    with (
        pytest.raises(InvalidRequest, match="was made for the format 'custom-voice-dir'"),
        without_index.claimed(),
    ):
        raise AssertionError("the folder was claimed")


def test_a_damaged_marker_beside_a_foreign_file_costs_nobody_that_file(tmp_path: Path):
    """The message for a damaged marker says to empty the folder, so it comes only if all files are ours."""
    sync(folder(tmp_path), a=(ALICE, 1))
    (tmp_path / MARKER).write_bytes(b"damaged")
    (tmp_path / "notes.txt").write_bytes(b"precious")
    with pytest.raises(InvalidRequest, match=r"not from a sync, such as 'notes\.txt'"):
        sync(folder(tmp_path))


@pytest.mark.parametrize("text", [b"", b"[]", b'{"purpose": 1}', b"[" * 100_000])
def test_a_damaged_marker_is_refused(tmp_path: Path, text: bytes):
    """A damaged marker does not tell whose folder it is."""
    sync(folder(tmp_path), a=(ALICE, 1))
    (tmp_path / MARKER).write_bytes(text)
    with pytest.raises(InvalidRequest, match="is not a marker that this version writes"):
        sync(folder(tmp_path))
    assert data_in(tmp_path) == {b"a"}


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(InvalidRequest, match="is not a folder"):
        sync(folder(tmp_path / "file"))


def test_a_new_volume_is_an_empty_folder(tmp_path: Path):
    """A new volume with a file system of its own has the folder `lost+found`."""
    (tmp_path / "lost+found").mkdir()
    sync(folder(tmp_path), a=(ALICE, 1))
    assert data_in(tmp_path) == {b"a"}


class Killed(BaseException):
    """The process ends here, without any clean-up."""


@contextmanager
def killed_before_step(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[list[int]]:
    """Kill the process before the nth change of the folder. Yields how many changes there were."""
    steps = [0]
    real_replace, real_unlink = Path.replace, Path.unlink

    def step() -> None:
        steps[0] += 1
        if steps[0] == number:
            raise Killed

    def replace(self: Path, target: Path) -> Path:
        step()
        return real_replace(self, target)

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if steps[0] == number:  # a killed process removes nothing, also not its temporary file
            raise Killed
        step()
        real_unlink(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "unlink", unlink)
        try:
            yield steps
        except Killed:
            return


def test_a_sync_that_is_killed_leaves_an_index_whose_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whenever the process is killed, a server reads a whole state: of before or of after. A file is missing
    only if its voice is gone. The next sync finishes the work.
    """
    for number in range(1, 100):
        path = tmp_path / str(number)
        sync(folder(path), old=(ALICE, 1), b=(BOB, 1))
        with killed_before_step(monkeypatch, number) as steps:
            sync(folder(path), new=(ALICE, 2), other=(hash_of("voice_3_carol"), 1))
        for line in (path / INDEX).read_text().splitlines():
            assert (path / line).is_file() or line.startswith(BOB), number
        sync(folder(path), new=(ALICE, 2), other=(hash_of("voice_3_carol"), 1))
        assert data_in(path) == {b"old", b"new", b"other"}
        assert not [name for name in contents(path) if atomic_files.temporary_for(name)]
        if steps[0] < number:
            break
    assert number > 5, "the folder was changed in several steps"


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server that starts while the disk is full reads the former state."""
    sync(folder(tmp_path), old=(ALICE, 1))
    before = contents(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        sync(folder(tmp_path), new=(ALICE, 2))
    assert contents(tmp_path) == before


def test_a_full_disk_keeps_nothing_of_a_deleted_voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The index has names and transcripts. There may be no room for a copy of it, nor for new files."""
    alice, _ = sync(folder(tmp_path), a=(ALICE, 1), b=(BOB, 1))
    (tmp_path / f".{INDEX}.0123abcd.part").write_bytes(b"left by a killed process")

    def full(path: Path, _: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(folder_module, "write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        sync(folder(tmp_path), a=(ALICE, 1), new=(ALICE, 2))
    assert set(contents(tmp_path)) == {MARKER, INDEX, str(alice)}
    assert (tmp_path / INDEX).read_text() == str(alice)


def test_what_was_written_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A volume that loses bytes is found out before a server reads from it."""
    monkeypatch.setattr(folder_module, "write_atomically", lambda path, _: path.write_bytes(b"torn"))
    with pytest.raises(DigestMismatch, match="reads back with other bytes"):
        sync(folder(tmp_path), a=(ALICE, 1))


def test_two_syncs_of_one_folder_wait_for_each_other(tmp_path: Path):
    """Each would otherwise remove what the other has just written."""
    done = threading.Event()

    def other() -> None:
        sync(folder(tmp_path), b=(BOB, 2))
        done.set()

    thread = threading.Thread(target=other)
    target = folder(tmp_path)
    with target.claimed():
        thread.start()
        assert not done.wait(0.3)
        target.publish([target.add(ALICE, 1, b"a")], b"")
    thread.join(30)
    assert data_in(tmp_path) == {b"b"}


def test_a_folder_that_another_sync_keeps_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stopped process must not stop all others without a word."""
    monkeypatch.setattr(folder_module, "_MAX_LOCK_SECONDS", 0.05)
    with (
        folder(tmp_path).claimed(),
        pytest.raises(InvalidRequest, match="another sync has held the lock"),
        folder(tmp_path).claimed(),
    ):
        raise AssertionError("the folder was claimed twice")
