"""Tests of the cache's directory: shared by processes, bounded, and never trusted without a look."""

import contextlib
import errno
import fcntl
import http.server
import io
import os
import random
import signal
import socketserver
import stat
import subprocess
import sys
import threading
import time as real_time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from speaker_registry import ArtifactCache, RegistryClient, errors
from speaker_registry.disk_cache import MAPPED_BYTES
from tests.unit.sdk.conftest import Connect, on_one_client
from tests.unit.sdk.fake_registry import (
    ECAPA,
    URL,
    FakeRegistry,
    artifact_file,
    error_answer,
    file_headers,
)


def on_disk(folder: Path, kind: str = "blobs") -> list[Path]:
    return sorted((folder / kind).iterdir())


def fetched(connect: Connect, folder: Path, name: str = "alice", **options: Any) -> Any:
    """Fetch with a memory of its own, as another process would."""
    client = connect(cache=ArtifactCache(directory=folder), retries=0)
    fetch = {key: options.pop(key) for key in list(options) if key in {"max_age", "stale_if_error"}}
    return client.fetch(name, ECAPA, **fetch), client.cache.stats()


def test_another_process_finds_what_one_has_fetched(connect: Connect, registry: FakeRegistry, tmp_path: Path):
    """An engine that restarts does not transfer its voices again."""
    registry.add_version("alice")
    first, _ = fetched(connect, tmp_path)
    second, stats = fetched(connect, tmp_path, max_age=60)
    assert len(registry.requests) == 1
    assert (stats.disk_hits, stats.hits, stats.misses) == (1, 1, 0)
    assert second.digest == first.digest
    assert second.manifest == first.manifest
    np.testing.assert_array_equal(second.tensors["speaker_embedding"], first.tensors["speaker_embedding"])
    with pytest.raises(ValueError, match="read-only"):
        second.tensors["speaker_embedding"][0] = 7


def test_what_is_on_disk_is_revalidated(connect: Connect, registry: FakeRegistry, tmp_path: Path):
    """Without `max_age` the registry is asked, and nothing is transferred."""
    registry.add_version("alice")
    fetched(connect, tmp_path)
    _, stats = fetched(connect, tmp_path)
    assert "if-none-match" in registry.requests[1].headers
    assert (stats.revalidations, stats.misses) == (1, 0)


def test_large_files_are_mapped_and_outlive_their_removal(
    connect: Connect, registry: FakeRegistry, tmp_path: Path
):
    """Another process may evict a file while an engine reads it."""
    version = registry.add_version("alice")
    version.files[ECAPA] = artifact_file(width=MAPPED_BYTES // 4 + 1)
    fetched(connect, tmp_path)
    artifact, _ = fetched(connect, tmp_path, max_age=60)
    (blob,) = on_disk(tmp_path)
    assert str(blob) in Path("/proc/self/maps").read_text()
    blob.unlink()
    assert (artifact.tensors["speaker_embedding"] == 1).all()


@on_one_client
@pytest.mark.parametrize(
    "damage",
    ["cut", "changed", "emptied", "link", "dangling link", "folder", "ref", "ref link", "ref folder"],
)
def test_a_damaged_file_is_fetched_again(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, damage: str
):
    """A power cut tears files, and a disk changes bits."""
    registry.add_version("alice")
    fetched(connect, tmp_path)
    (blob,), (ref,) = on_disk(tmp_path), on_disk(tmp_path, "refs")
    whole = blob.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(whole)
    damaged = ref if damage.startswith("ref ") else blob
    if damage.endswith("link"):
        damaged.unlink()
        damaged.symlink_to(tmp_path / "nowhere" if "dangling" in damage else elsewhere)
    elif damage.endswith("folder"):
        damaged.unlink()
        damaged.mkdir()
    elif damage == "ref":
        ref.write_bytes(b'{"digest":')
    else:
        changed = whole[:-1] + bytes([whole[-1] ^ 1])
        blob.write_bytes({"cut": whole[:-1], "changed": changed, "emptied": b""}[damage])
    artifact, stats = fetched(connect, tmp_path, max_age=60)
    assert (artifact.tensors["speaker_embedding"] == 1).all()
    assert (stats.misses, stats.disk_errors > 0) == (1, True)
    assert not damaged.is_symlink()
    assert blob.read_bytes() == elsewhere.read_bytes() == whole
    assert fetched(connect, tmp_path, max_age=60)[1].disk_hits == 1


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Refuse this file also to root, as which the tests may run, but no file that replaces it."""
    inode, open_file = path.stat().st_ino, os.open

    def refuse(name: Any, *arguments: Any, **options: Any) -> int:
        descriptor = open_file(name, *arguments, **options)
        if os.fstat(descriptor).st_ino == inode:
            os.close(descriptor)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return descriptor

    (path.parent.parent / f"kept-{inode}").hardlink_to(path)  # so that no other file gets the inode
    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("kind", ["blobs", "refs"])
def test_a_file_that_cannot_be_read_is_fetched_again(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """Another user, such as root, may have written it. It would be transferred at each start for ever."""
    registry.add_version("alice")
    fetched(connect, tmp_path)
    [path] = on_disk(tmp_path, kind)
    refuse_to_open(monkeypatch, path)
    assert fetched(connect, tmp_path, max_age=60)[1].disk_errors == 1
    artifact, stats = fetched(connect, tmp_path, max_age=60)
    assert (artifact.tensors["speaker_embedding"] == 1).all()
    assert (stats.disk_hits, stats.misses, stats.disk_errors) == (1, 0, 0)


def test_a_lock_that_cannot_be_opened_is_replaced(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nothing would be kept again."""
    for name in ("alice", "bob"):
        registry.add_version(name)
    fetched(connect, tmp_path)
    refuse_to_open(monkeypatch, tmp_path / "lock")
    assert fetched(connect, tmp_path, "bob")[1].disk_errors == 0
    assert fetched(connect, tmp_path, "bob", max_age=60)[1].disk_hits == 1


@on_one_client
@pytest.mark.parametrize("damage", ["link", "dangling link", "folder"])
def test_a_lock_that_is_no_file_is_replaced(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, damage: str
):
    """Without the lock, nothing would ever be kept in the directory again."""
    registry.add_version("alice")
    directory, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    directory.mkdir()
    lock = directory / "lock"
    if damage == "folder":
        lock.mkdir()
    else:
        elsewhere.write_bytes(b"of another program")
        lock.symlink_to(tmp_path / "nowhere" if damage == "dangling link" else elsewhere)
    assert fetched(connect, directory)[1].disk_errors == 1
    assert fetched(connect, directory)[1].disk_errors == 0
    assert fetched(connect, directory, max_age=60)[1].disk_hits == 1
    assert lock.is_file()
    assert not lock.is_symlink()
    assert not (tmp_path / "nowhere").exists()
    assert damage == "folder" or elsewhere.read_bytes() == b"of another program"


def test_a_folder_with_files_of_others_is_left_alone(
    connect: Connect, registry: FakeRegistry, tmp_path: Path
):
    """Another file system may be mounted there."""
    registry.add_version("alice")
    fetched(connect, tmp_path)
    [blob] = on_disk(tmp_path)
    blob.unlink()
    blob.mkdir()
    (blob / "file").write_bytes(b"of another program")
    for _ in range(2):
        artifact, stats = fetched(connect, tmp_path, max_age=60)
        assert (artifact.tensors["speaker_embedding"] == 1).all()
        assert (stats.misses, stats.disk_errors > 0) == (1, True)
    assert (blob / "file").read_bytes() == b"of another program"


def test_a_file_under_the_name_of_another_request_answers_nothing(
    connect: Connect, registry: FakeRegistry, tmp_path: Path
):
    """A repair of the file system, or a copy that went wrong, may give a file the name of another one."""
    digests = {}
    for name in ("alice", "bob"):
        registry.add_version(name)
        digests[name] = fetched(connect, tmp_path, name)[0].digest
    first, second = on_disk(tmp_path, "refs")
    texts = first.read_bytes(), second.read_bytes()
    second.write_bytes(texts[0])
    first.write_bytes(texts[1])
    for name, digest in digests.items():
        artifact, stats = fetched(connect, tmp_path, name, max_age=60, stale_if_error=60)
        assert (artifact.manifest.voice, artifact.digest) == (name, digest)
        assert stats.misses == 1
        assert fetched(connect, tmp_path, name, max_age=60)[1].disk_hits == 1


def test_a_clock_that_was_set_back_does_not_keep_the_directory_as_it_was(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A machine may start with the time of another year, until it has asked for the right one."""
    registry.add_version("alice")
    with monkeypatch.context() as years_ahead:
        years_ahead.setattr("speaker_registry.disk_cache._boot_id", lambda: "the boot before")
        years_ahead.setattr("time.time", lambda: real_time.time_ns() / 1e9 + 1e8)
        fetched(connect, tmp_path)
    registry.add_version("alice")
    latest, _ = fetched(connect, tmp_path)
    found, stats = fetched(connect, tmp_path, max_age=60)
    assert found.digest == latest.digest
    assert (stats.disk_hits, stats.misses) == (1, 0)


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_ages_are_right_although_the_clock_was_set(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
):
    """The uptime of the machine tells them, as long as it has not started again."""
    registry.add_version("alice")
    fetched(connect, tmp_path)
    monkeypatch.setattr("time.time", lambda: real_time.time_ns() / 1e9 + seconds)
    assert fetched(connect, tmp_path, max_age=60)[1].disk_hits == 1
    assert len(registry.requests) == 1


def test_a_clock_that_was_set_back_by_the_age_of_an_artifact_does_not_make_it_new(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An hour has passed, and the clock was set back by an hour: only the uptime of the machine tells."""
    registry.add_version("alice")
    fetched(connect, tmp_path)
    version = registry.add_version("alice")
    uptime = real_time.clock_gettime
    monkeypatch.setattr("time.clock_gettime", lambda clock: uptime(clock) + 3600)
    found, stats = fetched(connect, tmp_path, max_age=60)
    assert (found.manifest.version, stats.misses) == (version.number, 1)
    assert fetched(connect, tmp_path, max_age=60)[1].disk_hits == 1


def test_without_the_id_of_a_boot_ages_are_measured_by_the_clock(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """macOS tells none, and after a start of the machine its uptime says nothing about a file of before."""
    registry.add_version("alice")
    monkeypatch.setattr("speaker_registry.disk_cache._boot_id", lambda: "the boot before")
    fetched(connect, tmp_path)
    monkeypatch.setattr("speaker_registry.disk_cache._boot_id", lambda: "")
    monkeypatch.delattr("time.CLOCK_BOOTTIME")
    assert fetched(connect, tmp_path, max_age=60)[1].disk_hits == 1
    fetched(connect, tmp_path)
    assert fetched(connect, tmp_path, max_age=60)[1].disk_hits == 1


def test_a_count_that_another_program_has_made_longer_is_repaired(registry: FakeRegistry, tmp_path: Path):
    """It could not be read, so each artifact that is kept would make the cache look at all files."""
    registry.add_version("alice")
    (tmp_path / "lock").write_text("0" * 31)
    client = RegistryClient(
        URL, transport=httpx.MockTransport(registry), cache=ArtifactCache(directory=tmp_path)
    )
    client.fetch("alice", ECAPA)
    assert disk_bytes(tmp_path) <= int((tmp_path / "lock").read_text()) < 20_000


def test_a_lock_that_cannot_be_released_leaves_no_descriptor_open(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Some network file systems refuse it. A server would run out of descriptors."""
    flock = fcntl.flock

    def refuse(lock: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError(errno.ENOLCK, "no locks")
        flock(lock, operation)

    registry.add_version("alice")
    monkeypatch.setattr(fcntl, "flock", refuse)
    descriptors = Path("/proc/self/fd")
    before = len(on_disk(descriptors, "."))
    assert fetched(connect, tmp_path)[1].disk_errors == 1
    assert len(on_disk(descriptors, ".")) == before


def test_only_the_owner_can_read_the_directory(connect: Connect, registry: FakeRegistry, tmp_path: Path):
    """Voices are personal data, and names of voices are not names of files."""
    registry.add_version("..Alice")
    folder = tmp_path / "cache"
    fetched(connect, folder, "..Alice")
    for path in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert not list(tmp_path.rglob("*lice*"))


def test_the_owner_can_read_the_files_whatever_the_umask_is(
    connect: Connect, registry: FakeRegistry, tmp_path: Path
):
    """A process whose umask takes all rights away shares the directory with others."""
    registry.add_version("alice")
    for folder in ("refs", "blobs"):
        (tmp_path / folder).mkdir()
    before = os.umask(0o777)
    try:
        fetched(connect, tmp_path)
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600] * 3


def test_links_in_the_directory_are_not_followed(connect: Connect, registry: FakeRegistry, tmp_path: Path):
    """A link would make the cache write, and evict, elsewhere."""
    registry.add_version("alice")
    folder, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.mkdir()
    (folder / "blobs").symlink_to(elsewhere)
    artifact, stats = fetched(connect, folder)
    assert artifact.manifest.voice == "alice"
    assert stats.disk_errors > 0
    assert not list(elsewhere.iterdir())
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="link is not a directory of this user"):
        ArtifactCache(directory=tmp_path / "link")


def test_clients_with_other_keys_do_not_see_each_others_refs(
    connect: Connect, registry: FakeRegistry, tmp_path: Path
):
    """A shared directory must not turn one tenant's key into another's, though the bytes are kept once."""
    registry.add_version("alice")
    for number, options in enumerate(({}, {"api_key": "two"}, {"namespace": "other"})):
        client = connect(cache=ArtifactCache(directory=tmp_path), **options)
        client.fetch("alice", ECAPA, max_age=1e9)
        assert len(registry.requests) == number + 1
    assert (len(on_disk(tmp_path)), len(on_disk(tmp_path, "refs"))) == (1, 3)


def test_an_erased_voice_leaves_the_disk(connect: Connect, registry: FakeRegistry, tmp_path: Path):
    """Bytes of every version go; other voices stay."""
    for name in ("alice", "bob"):
        registry.add_version(name)
        fetched(connect, tmp_path, name)
    fetched(connect, tmp_path, "alice@1")
    registry.add_version("alice")
    fetched(connect, tmp_path)
    assert len(on_disk(tmp_path)) == 3
    del registry.voices["alice"]
    with pytest.raises(errors.VoiceNotFound):
        fetched(connect, tmp_path, stale_if_error=1e9)
    assert (len(on_disk(tmp_path)), len(on_disk(tmp_path, "refs"))) == (1, 1)
    assert fetched(connect, tmp_path, "bob", max_age=1e9)[0].manifest.voice == "bob"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get("alice"),
        lambda client: list(client.versions("alice")),
        lambda client: client.descriptor("alice@1", ECAPA),
        lambda client: client.delete("alice"),
    ],
    ids=["get", "versions", "descriptor", "delete"],
)
def test_any_call_that_finds_a_voice_gone_clears_the_cache(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, call: Callable[[Any], object]
):
    """The bytes of a deleted voice stay nowhere once the client knows of it, and other voices stay."""
    client = connect(cache=ArtifactCache(directory=tmp_path))
    for name in ("alice", "bob"):
        registry.add_version(name)
        client.fetch(name, ECAPA)
    del registry.voices["alice"]
    with pytest.raises(errors.VoiceNotFound):
        call(client)
    assert client.cache.stats().entries == 1
    assert (len(on_disk(tmp_path)), len(on_disk(tmp_path, "refs"))) == (1, 1)
    assert client.fetch("bob", ECAPA, max_age=1e9).manifest.voice == "bob"


@pytest.mark.parametrize(("status", "code"), [(403, "permission_denied"), (410, "voice_deleted")])
def test_what_is_forbidden_or_gone_is_not_served_later(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, status: int, code: str
):
    """`stale_if_error` is for a registry that does not answer, not for one that says no."""
    registry.add_version("alice")
    fetched(connect, tmp_path)
    registry.faults.append(error_answer(status, code))
    with pytest.raises(errors.SpeakerRegistryError):
        fetched(connect, tmp_path, stale_if_error=1e9)
    registry.faults.append(httpx.ConnectError("refused"))
    with pytest.raises(errors.Unavailable):
        fetched(connect, tmp_path, stale_if_error=1e9)


@on_one_client
@pytest.mark.parametrize("status", [401, 403, 404, 410, 500, 502])
def test_an_answer_of_a_proxy_takes_nothing_away(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, status: int
):
    """A proxy does not know whether the voice is gone. The cached artifact also serves in a later outage."""
    registry.add_version("alice")
    fetched(connect, tmp_path)
    registry.faults.extend([httpx.Response(status, html="<html>page</html>"), httpx.ConnectError("refused")])
    for _ in range(2):
        artifact, _ = fetched(connect, tmp_path, stale_if_error=60)
        assert artifact.manifest.version == 1


def test_an_engine_starts_without_the_registry(connect: Connect, registry: FakeRegistry, tmp_path: Path):
    """What a former process kept is served for as long as the engine allows, and counted."""
    registry.add_version("alice")
    fetched(connect, tmp_path)
    registry.faults.extend(httpx.ConnectError("refused") for _ in range(2))
    artifact, stats = fetched(connect, tmp_path, stale_if_error=60)
    assert artifact.manifest.version == 1
    assert (stats.stale_answers, stats.errors) == (1, 1)
    with pytest.raises(errors.Unavailable):
        fetched(connect, tmp_path, stale_if_error=1e-9)


def test_a_directory_that_cannot_be_used_fails_no_fetch(
    connect: Connect, registry: FakeRegistry, tmp_path: Path
):
    """A full or broken disk costs speed, not voices."""
    registry.add_version("alice")
    cache = ArtifactCache(directory=tmp_path / "cache")
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("not a directory")
    assert connect(cache=cache).fetch("alice", ECAPA).manifest.version == 1
    assert cache.stats().disk_errors > 0


def test_a_full_disk_fails_no_fetch_and_is_left_as_it_was(
    connect: Connect, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each fetch would otherwise leave one more file that nobody reads, and keep the disk full."""

    class FullFile(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(bytes(data[: len(data) // 2]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    registry.add_version("alice")
    client = connect(cache=ArtifactCache(directory=tmp_path, max_entries=0))
    with monkeypatch.context() as patches:
        patches.setattr(os, "fdopen", FullFile)
        for _ in range(3):
            assert client.fetch("alice", ECAPA).manifest.version == 1
    assert os.listdir(tmp_path / "blobs") == os.listdir(tmp_path / "refs") == []  # noqa: PTH208
    client.fetch("alice", ECAPA)
    assert len(on_disk(tmp_path)) == 1


def test_the_least_recently_used_leaves_the_disk(registry: FakeRegistry, tmp_path: Path):
    """The bound holds after every write, and a voice that is read stays."""
    cache = ArtifactCache(directory=tmp_path, max_disk_bytes=200_000)
    client = RegistryClient(URL, transport=httpx.MockTransport(registry), cache=cache)
    for name in ("kept", *(f"voice{number}" for number in range(40))):
        registry.add_version(name)
        client.fetch(name, ECAPA)
        cache.clear()
        client.fetch("kept", ECAPA, max_age=1e9)
        assert disk_bytes(tmp_path) <= 200_000
    assert len(registry.requests) == 41
    kept = {blob.name for blob in on_disk(tmp_path)}
    assert client.fetch("kept", ECAPA).digest.removeprefix("sha256:") in kept
    assert 5 < len(kept) < 30


def disk_bytes(folder: Path) -> int:
    """Size of all files, each with a block of overhead."""
    total = 0
    for path in (*(folder / "refs").iterdir(), *(folder / "blobs").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size + 4096
    return total


VOICES = {f"voice{number}": artifact_file(f"voice{number}", width=3000 + number) for number in range(40)}


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        data = VOICES[self.path.split("/")[3]]
        known = self.headers.get("if-none-match") == file_headers(data)["etag"]
        self.send_response(304 if known else 200)
        for name, value in file_headers(data).items():
            self.send_header(name, value)
        if not known:
            self.send_header("content-length", str(len(data)))
        self.end_headers()
        if not known:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()
        thread.join()


READER = """
import random, sys
from speaker_registry import ArtifactCache, RegistryClient, disk_cache

class Torn(disk_cache.DamagedFile):
    def __init__(self, *said):
        print("Error: torn", said, flush=True)

disk_cache.DamagedFile = Torn
cache = ArtifactCache(directory=sys.argv[2], max_disk_bytes=int(sys.argv[3]), max_entries=2)
with RegistryClient(sys.argv[1], cache=cache) as client:
    while True:
        name = f"voice{random.randrange(40)}"
        artifact = client.fetch(name, "ecapa-voxceleb", max_age=0.2)
        tensor = artifact.tensors["speaker_embedding"]
        assert artifact.manifest.voice == name and tensor.shape == (3000 + int(name[5:]),)
        assert (tensor == 1).all()
        print(cache.stats().disk_errors, cache.stats().disk_hits, flush=True)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_eight_processes_share_a_directory_and_are_killed(server: str, tmp_path: Path):
    """No torn file is ever read, the bound holds at every look, and the survivors go on."""
    limit, rng = 400_000, random.Random(7)
    outputs = [tmp_path / f"out{number}" for number in range(8)]

    def start(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", READER, server, str(tmp_path / "cache"), str(limit)]
        with outputs[number].open("ab") as file:
            return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    running = [start(number) for number in range(8)]
    try:
        await_lines(outputs, 1)
        for _ in range(16):
            number = rng.randrange(8)
            assert running[number].poll() is None, outputs[number].read_text()
            running[number].send_signal(signal.SIGKILL)
            running[number].wait()
            running[number] = start(number)
            for _ in range(10):
                assert disk_bytes(tmp_path / "cache") <= limit
                real_time.sleep(rng.random() / 50)
        await_lines(outputs, 50)
    finally:
        for process in running:
            process.kill()
            process.wait()
    lines = "\n".join(path.read_text() for path in outputs)
    assert "Error" not in lines, lines[-2000:]
    assert any(line.split()[-1:] > ["0"] for line in lines.splitlines() if line.count(" ") == 1)
    cache = ArtifactCache(directory=tmp_path / "cache", max_disk_bytes=limit)
    with RegistryClient(server, cache=cache) as client:
        assert client.prefetch(VOICES, [ECAPA], max_age=60) == {}
    assert cache.stats().disk_errors == 0
    assert os.listdir(tmp_path / "cache/blobs")  # noqa: PTH208


def await_lines(outputs: list[Path], count: int) -> None:
    """Wait until each process has fetched that often."""
    deadline = real_time.monotonic() + 120
    while any(path.read_bytes().count(b"\n") < count for path in outputs):
        assert real_time.monotonic() < deadline, [path.read_text()[-500:] for path in outputs]
        real_time.sleep(0.05)
