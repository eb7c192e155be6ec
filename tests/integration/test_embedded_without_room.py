"""Tests of `make run` on a data folder that is read-only or no folder, or on a file system that is or becomes
full.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.deploy.tools import program
from tests.integration.test_embedded import PROFILE, ROOT
from tests.queue_workers import START_SECONDS, wait_until
from tests.unit.audio import clips

MIB = 1024**2
pytestmark = pytest.mark.timeout(600)


class Contained:
    """A handle on `python -m services.embedded run` in a view of the file system of its own."""

    def __init__(self, data: Path, mounts: Sequence[str] = (), first: str = "true") -> None:
        bwrap = program("bwrap", "bubblewrap")
        view = [bwrap, "--die-with-parent", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *mounts]
        self.data = data
        self.process = subprocess.Popen(
            [*view, "sh", "-c", f'{first}; exec "$0" -m services.embedded run', sys.executable],
            cwd=ROOT,
            env={
                **os.environ,
                "DATA": str(data),
                "PORT": "0",
                "WEIGHTS": "untrained",
                "PROFILES": PROFILE,
                "SPEAKER_STORE_START_SECONDS": "0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self.output: list[str] = []
        self._reader = threading.Thread(target=self.output.extend, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return "".join(self.output)

    def family(self) -> list[psutil.Process]:
        return (
            psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        )

    def up(self) -> str:
        """Wait until it is ready, and return its URL."""
        up = "Ctrl-C stops it.\n"
        wait_until(lambda: up in self.output or self.process.poll() is not None, START_SECONDS)
        assert up in self.output, self.text
        return next(line.split()[5] for line in self.output if "The speaker registry is up: " in line)

    def ended(self) -> int:
        """Return its exit status, once it has ended by itself."""
        status = self.process.wait(START_SECONDS)
        self._reader.join()
        return status

    def inside(self, path: Path) -> Path:
        """Return the same path as seen from outside the view."""
        inner = self.family()[0]  # later processes may be decoders, which end after a clip
        return Path(f"/proc/{inner.pid}/root{path}")


@contextmanager
def contained(data: Path, mounts: Sequence[str] = (), first: str = "true") -> Iterator[Contained]:
    run = Contained(data, mounts, first)
    try:
        yield run
    finally:
        family = (
            psutil.Process(run.process.pid).children(recursive=True) if run.process.poll() is None else []
        )
        run.process.kill()
        run.process.wait()
        psutil.wait_procs(family, timeout=30)


def tiny(data: Path, size: int) -> list[str]:
    """Make a file system of its own that holds so many bytes."""
    return ["--size", str(size), "--tmpfs", str(data)]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    """A folder that cannot be written is named, because an empty one has nothing to serve."""
    with contained(tmp_path, ["--ro-bind", str(tmp_path), str(tmp_path)]) as run:
        assert run.ended() == 1
    assert run.output[1:] == [f"DATA is {tmp_path}, which cannot be used: Read-only file system.\n"]


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path):
    data = tmp_path / "data"
    data.write_bytes(b"")
    with contained(data) as run:
        assert run.ended() == 1
    assert run.output[1:] == [f"DATA is {data}, which cannot be used: Not a directory.\n"]


def test_a_folder_that_never_had_room_is_named(tmp_path: Path):
    """A folder that never had room is named: the directories fit, but not a byte of a file."""
    fill = f"head -c 65536 /dev/zero > {tmp_path}/filler"
    with contained(tmp_path, tiny(tmp_path, 65536), first=fill) as run:
        assert run.ended() == 1
    assert "Traceback" not in run.text
    assert str(tmp_path / "bucket") in run.output[-1]
    assert "No space left on device" in run.output[-1]


@pytest.mark.slow
def test_what_becomes_full_refuses_uploads_and_serves_what_it_has(tmp_path: Path):
    """A registry whose disk becomes full refuses uploads and serves what it has. It takes uploads again when
    there is room.
    """
    with contained(tmp_path, tiny(tmp_path, 32 * MIB)) as run:
        with httpx.Client(base_url=run.up(), timeout=60) as client:
            assert upload(client, "kept").status_code == 200
            filler = run.inside(tmp_path / "filler")
            fill(filler)
            refused = upload(client, "refused")
            assert refused.status_code == 503, refused.text
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["error"]["message"].startswith("The disk of the object store is full.")
            assert client.get("/v1/voices/kept").status_code == 200
            assert client.get("/v1/voices/refused").status_code == 404
            assert [one["key"] for one in client.get("/v1/voices").json()["data"]] == ["kept"]
            filler.unlink()
            wait_until(lambda: upload(client, "refused").status_code == 200)
        run.family()[0].send_signal(signal.SIGTERM)
        assert run.ended() == 0
    assert "No space left on device" in run.text
    assert "Traceback" not in run.text


def upload(client: httpx.Client, name: str) -> httpx.Response:
    files = {"audio_sample": ("clip.wav", clips.wav(1.2), "audio/wav")}
    return client.post("/v1/audio/voices", data={"name": name, "consent": "cons_1"}, files=files)


def fill(path: Path) -> None:
    """Fill the file system to the last byte."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
