"""Tests of `make run` and `make demo` as a user meets them: started from a shell, tried, stopped, killed and
misused.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import psutil
import pytest
from safetensors.numpy import load

from services.embedded.supervisor import STOP_SECONDS
from services.embedded.valkey import ValkeyServer
from speaker_registry import RegistryClient
from tests.queue_workers import START_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
PROFILE = "ecapa-voxceleb"
"""The profile of most tests. Its model loads in half the time of the default profile's, which only the tests
of the printed text and of the demo use.
"""
DEFAULT_PROFILE = "qwen3-tts-0.6b"
WIDTH = 192
STOPPED_SECONDS = 60.0
pytestmark = pytest.mark.timeout(600)


class Run:
    """One `python -m services.embedded run` with one data folder, started whenever a test needs it."""

    def __init__(self, data: Path, clone: Path = ROOT) -> None:
        self.data, self.clone = data, clone
        self.process: subprocess.Popen[str] | None = None
        self.output: list[str] = []

    def start(self, **environment: str) -> None:
        """Start the command as a shell starts a job, in a process group of its own."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.embedded", "run"],
            cwd=self.clone,
            env={
                **os.environ,
                "DATA": str(self.data),
                "PORT": "0",
                "WEIGHTS": "untrained",
                "PROFILES": PROFILE,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self.output = []
        threading.Thread(target=self.output.extend, args=(self.process.stdout,), daemon=True).start()

    def up(self) -> "Run":
        """Make sure that it is running and ready. One that runs already is left as it is."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        wait_until(
            lambda: "Ctrl-C stops it.\n" in self.output or self.process.poll() is not None, START_SECONDS
        )
        assert self.process.poll() is None, self.text
        return self

    @property
    def text(self) -> str:
        return "".join(self.output)

    @property
    def url(self) -> str:
        return re.search(r"is up: (http://\S+)", self.text)[1]

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, what: str) -> psutil.Process:
        return next(one for one in self.family() if what in " ".join(one.cmdline()))

    def press_ctrl_c(self) -> None:
        """Interrupt the whole foreground group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ends_within(self, seconds: float, family: list[psutil.Process]) -> int:
        """Return the exit status, once all processes of the family are gone too."""
        deadline = time.monotonic() + seconds
        status = self.process.wait(seconds)
        left = psutil.wait_procs(family, timeout=max(0.1, deadline - time.monotonic()))[1]
        assert not left, [one.cmdline() for one in left]
        return status

    def end(self) -> None:
        if self.process is not None:
            family = self.family() if self.process.poll() is None else []
            self.process.kill()
            self.process.wait()
            psutil.wait_procs(family, timeout=10)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Yield one run for all tests, because each start loads a model. A test may leave it stopped, with its
    data.
    """
    run = Run(tmp_path_factory.mktemp("embedded"))
    yield run
    run.end()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Run]:
    """Yield a run of its own, for tests that end it before a model is loaded."""
    run = Run(tmp_path)
    yield run
    run.end()


def curl(line: str, folder: Path) -> str:
    """Run a curl line as it was printed. Without curl, make the same request and return its answer."""
    if shutil.which("curl"):
        done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout
    words = shlex.split(line.partition(" | ")[0])
    fields = [word.split("=", 1) for flag, word in pairwise(words) if flag == "-F"]
    files = [
        (name, (folder / value[1:]).open("rb") if value.startswith("@") else (None, value))
        for name, value in fields
    ]
    method = "POST" if files or "POST" in words else "GET"
    answer = httpx.request(method, words[-1], files=files or None, timeout=90)
    if "-o" in words:
        assert answer.status_code == 200, answer.text
        (folder / "alice.safetensors").write_bytes(answer.content)
        return ""
    return answer.text


def held(url: str) -> dict[str, list[tuple[int, str]]]:
    """Return name -> (version, digest of its artifact) of everything a registry serves."""
    with RegistryClient(url) as client:
        return {
            voice.name: [
                (
                    version.version,
                    client.descriptor(f"{voice.name}@{version.version}", PROFILE).digest,
                )
                for version in client.versions(voice.name)
            ]
            for voice in client.list()
        }


@pytest.mark.slow
def test_what_it_prints_can_be_pasted(fresh: Run, tmp_path: Path):
    """Two printed lines can be pasted and lead to a file, because they are a newcomer's first minute."""
    fresh.start(PROFILES=DEFAULT_PROFILE)
    fresh.up()
    assert f"Data: {fresh.data}" in fresh.text
    assert "UNTRAINED" in fresh.text
    lines = [line.strip() for line in fresh.text.splitlines() if line.startswith("  curl ")]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    registered, _ = (curl(line, tmp_path) for line in lines)
    assert json.loads(registered)["created"] is True
    tensors = load((tmp_path / "alice.safetensors").read_bytes())
    assert set(tensors) == {"speaker_embedding", "ref_code"}


@pytest.mark.slow
def test_a_profile_that_cannot_be_served_is_named_and_stops_no_other(fresh: Run):
    """A profile that cannot be served is named and stops no other. One has wrong settings and one has no
    encoder at all, which the operator has to fix; the third must still serve every caller.
    """
    fresh.start(PROFILES="omnivoice,voxtral,ecapa-voxceleb", SPEAKER_OMNIVOICE_TRIM="perhaps")
    with RegistryClient(fresh.up().url) as client:
        served = {profile.id: profile.workers for profile in client.profiles() if profile.required}
        assert served == {"omnivoice": 0, "voxtral": 0, "ecapa-voxceleb": 1}
        client.register("alice", ROOT / "examples/clips/rowan.flac", consent="cons_1")
        assert client.fetch("alice@1", "ecapa-voxceleb", wait=60).manifest.profile == "ecapa-voxceleb"
    wait_until(lambda: re.search(r"profile\.not_served  profile=omnivoice .*'perhaps'", fresh.text))


@pytest.mark.slow
def test_its_log_lines_are_for_people(run: Run):
    """The log lines in a terminal are for people, who want to see what happens to voices, not JSON or a
    server's life cycle.
    """
    url = run.up().url
    with RegistryClient(url) as client:
        client.register("bob", embedding=np.linspace(-1, 1, WIDTH), consent="cons_1")
    wait_until(
        lambda: re.search(r"^\d\d:\d\d:\d\d api +version\.registered  speaker=default/bob", run.text, re.M)
    )
    assert '{"' not in run.text
    assert "Uvicorn" not in run.text


@pytest.mark.slow
def test_a_second_one_on_the_same_data_is_refused(run: Run, fresh: Run):
    """A second registry on the same data is refused, because two servers appending to one log destroy it."""
    run.up()
    fresh.data = run.data
    fresh.start()
    assert fresh.process.wait(START_SECONDS) == 1
    assert f"Another registry runs on {run.data}" in fresh.text
    assert httpx.get(f"{run.url}/readyz").status_code == 200


@pytest.mark.slow
def test_a_second_one_with_a_redis_of_its_own_is_refused_as_well(run: Run, fresh: Run, tmp_path: Path):
    """A second registry with a Redis of its own is refused too, because each Redis would assign version 1 of
    the same voice.
    """
    run.up()
    fresh.data = run.data
    with ValkeyServer(tmp_path / "another") as server:
        fresh.start(REDIS_URL=server.url)
        assert fresh.process.wait(START_SECONDS) == 1
    assert f"Another registry runs on {run.data}" in fresh.text


@pytest.mark.slow
def test_a_child_that_is_killed_is_started_again(run: Run):
    """A child that is killed is started again. An out-of-memory kill at night must not need a person in the
    morning.
    """
    url = run.up().url
    for what in ("services.registry_api", "valkey-server", "services.extractor_worker"):
        killed = run.child(what)
        killed.kill()
        wait_until(lambda gone=killed, what=what: _another(run, what, gone.pid), START_SECONDS)
    with RegistryClient(url, retries=10) as client:
        wait_until(
            lambda: all(profile.workers for profile in client.profiles() if profile.required), START_SECONDS
        )
        assert client.register("carol", ROOT / "examples/clips/rowan.flac", consent="cons_1").version == 1
        client.wait_ready("carol@1")
    wait_until(lambda: re.search(r"registry +worker\.ended  status=-9", run.text))


def _another(run: Run, what: str, pid: int) -> bool:
    with suppress(StopIteration, psutil.Error):
        return run.child(what).pid != pid
    return False


@pytest.mark.slow
def test_a_restart_finds_every_voice_version_and_artifact_again(run: Run):
    """A restart finds every voice, version and artifact again, as the data folder promises."""
    with RegistryClient(run.up().url) as client:
        for ramp in (np.linspace(-1, 1, WIDTH), np.linspace(1, -1, WIDTH)):
            client.register("dora", embedding=ramp, consent="cons_1")
        client.register("erin", embedding=np.linspace(0, 1, WIDTH), consent="cons_1")
        client.delete("erin")
    before, family = held(run.url), run.family()
    assert [number for number, _ in before["dora"]] == [2, 1]
    run.press_ctrl_c()
    assert run.ends_within(STOPPED_SECONDS, family) == 0
    assert f"running jobs have {STOP_SECONDS:g} s to finish, the others continue" in run.text
    assert held(run.up().url) == before


@pytest.mark.slow
@pytest.mark.parametrize("suspended", ["services.extractor_worker", "services.registry_api"])
def test_ctrl_c_stops_a_child_that_is_suspended(run: Run, suspended: str):
    """Ctrl-C stops a suspended child. It sees no signal, but the user wants the machine back all the same."""
    run.up()
    family = run.family()
    run.child(suspended).suspend()
    run.press_ctrl_c()
    assert run.ends_within(STOPPED_SECONDS, family) == 0
    assert "stopped; the data is kept" in run.text


@pytest.mark.slow
def test_a_second_ctrl_c_ends_everything_at_once(run: Run):
    """A second Ctrl-C ends everything at once. The first waits for a server that does not answer; a user who
    types it twice is in a hurry.
    """
    run.up()
    family = run.family()
    run.child("valkey-server").suspend()
    run.press_ctrl_c()
    time.sleep(0.5)
    run.press_ctrl_c()
    assert run.ends_within(STOPPED_SECONDS, family) == 130


@pytest.mark.slow
def test_ctrl_c_stops_it_while_it_starts(fresh: Run):
    """Ctrl-C stops the command while it starts, because loading a model takes long enough for a user to
    change their mind.
    """
    fresh.start()
    wait_until(lambda: len(fresh.family()) >= 4, START_SECONDS)  # Valkey, API, its decoder, worker
    family = fresh.family()
    fresh.press_ctrl_c()
    assert fresh.ends_within(STOPPED_SECONDS, family) == 130
    assert "Traceback" not in fresh.text


def test_ctrl_c_in_the_first_moment_is_no_traceback(fresh: Run, tmp_path: Path):
    """Ctrl-C in the first moment prints no traceback. Importing the libraries takes long enough for a user to
    notice a mistyped line.
    """
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "pydantic.py").write_text("print('importing', flush=True); import time; time.sleep(60)")
    fresh.start(PYTHONPATH=str(slow))
    wait_until(lambda: fresh.text == "importing\n")
    fresh.press_ctrl_c()
    assert fresh.process.wait(STOPPED_SECONDS) == 130
    wait_until(lambda: fresh.text == "importing\n\nstopped\n")


@pytest.mark.slow
def test_no_child_outlives_a_supervisor_that_is_killed(fresh: Run):
    """No child outlives a supervisor that is killed. Orphans would hold the port, the data folder and the
    memory unnoticed.
    """
    fresh.start()
    wait_until(lambda: len(fresh.family()) >= 4, START_SECONDS)
    family = fresh.family()
    fresh.process.kill()
    fresh.ends_within(STOPPED_SECONDS, family)


@pytest.mark.slow
def test_beyond_loopback_it_makes_a_key_and_asks_for_it(fresh: Run):
    """`make run HOST=0.0.0.0` makes a key and asks for it. It works at once, and admits only callers who can
    read the file that it names.
    """
    fresh.start(HOST="0.0.0.0")
    fresh.up()
    said = "".join(fresh.output)
    named = re.search(r"KEY=\$\(cat (\S+)\)", said)
    assert named, said
    path = Path(named[1])
    assert path.stat().st_mode & 0o777 == 0o600
    token = path.read_text().strip()
    assert token not in said
    url = next(re.finditer(r"http://127\.0\.0\.1:\d+", said))[0]
    assert httpx.get(f"{url}/v1/voices").status_code == 401
    assert httpx.get(f"{url}/v1/voices", headers={"Authorization": f"Bearer {token}"}).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (
            {"HOST": "0.0.0.0", "SPEAKER_AUTH_REQUIRED": "false"},
            "HOST is '0.0.0.0': SPEAKER_API_HOST is '0.0.0.0' and SPEAKER_AUTH_REQUIRED is false: without",
        ),
        ({"SPEAKER_AUTH_REQUIRED": "perhaps"}, "SPEAKER_AUTH_REQUIRED: "),
        ({"PROFILES": "qwen3"}, "PROFILES: Unknown profile 'qwen3'. Known: "),
        ({"WEIGHTS": "/no/such"}, "WEIGHTS: there is no folder /no/such"),
        (
            {"WEIGHTS": "examples", "PROFILES": DEFAULT_PROFILE},
            "The worker could not start: qwen3-tts-0.6b: config.json, model",
        ),
        (
            {"PORT": "http"},
            "PORT: accepted: a whole number from 0 to 65535; it is 'http'",
        ),
        ({"DATA": "/dev/null/data"}, "DATA is /dev/null/data, which cannot be used: Not a directory."),
        (
            {"SPEAKER_MAX_UPLOADED": "0"},  # which the API and the worker read, and either may be the first
            " could not start: SPEAKER_MAX_UPLOADED: accepted: a whole number from 1 to 1000000000; it is "
            "'0'",
        ),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(fresh: Run, environment: dict[str, str], says: str):
    """A wrong setting is named in one line. A user who mistyped it should read what is wrong and why, not a
    traceback of an unfamiliar process.
    """
    fresh.start(**environment)
    family: list[psutil.Process] = []
    while fresh.process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            family = fresh.family() or family
        time.sleep(0.05)
    assert fresh.ends_within(STOPPED_SECONDS, family) in {1, 2}
    wait_until(lambda: says in fresh.text)
    said = [line for line in fresh.output if not line.startswith("starting (") and "takes_long" not in line]
    assert len(said) == 1, fresh.text


@pytest.mark.slow
def test_it_runs_in_a_folder_whose_name_has_blanks(short_folder: Path):
    """The command runs in a folder whose name contains blanks, because some people's clones lie in "My
    Documents".
    """
    clone = short_folder / "a clone"
    clone.mkdir()
    for name in ("services", "speaker_registry"):
        (clone / name).symlink_to(ROOT / name)
    run = Run(Path("my data"), clone)
    try:
        with RegistryClient(run.up().url) as client:
            client.register("gina", ROOT / "examples/clips/robin.flac", consent="cons_1")
            client.wait_ready("gina@1")
            assert client.fetch("gina@1", PROFILE).tensors
        assert (clone / "my data" / "redis" / "valkey.sock").is_socket()
        family = run.family()
        run.press_ctrl_c()
        assert run.ends_within(STOPPED_SECONDS, family) == 0
    finally:
        run.end()


def test_a_port_in_use_is_named(fresh: Run):
    """A port in use is named. Usually a registry runs on it already, in another terminal."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        fresh.start(PORT=str(taken.getsockname()[1]))
        assert fresh.process.wait(START_SECONDS) == 1
    assert re.search(r"^Port \d+ of 127\.0\.0\.1 cannot be used \(Address already in use\)", fresh.text, re.M)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short path. pytest's own paths are too long for a unix socket when it runs
    several processes.
    """
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.slow
def test_the_demo_runs_to_its_end(short_folder: Path):
    """The demo runs to its end. It is the first of the two commands, shows every step, and leaves nothing
    behind.
    """
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    done = subprocess.run(
        [sys.executable, "-m", "services.embedded", "demo"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * START_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # On a busy machine the start takes longer than users are left without news.
    assert not [line for line in done.stderr.splitlines() if "start.takes_long" not in line]
    shown = (
        "ref_code: int32 [75, 16]",
        "speaker_embedding: float32 [1024]",
        '"profile": "qwen3-tts-0.6b"',
        '"untrained": true',
        "wren@2: ready, 6.01 s of audio  <- what 'wren' stands for now",
        "wren@1: ready",
        "delete the voice",
        "stop everything",
    )
    for text in shown:
        assert text in done.stdout
    assert len(re.findall(r"^ +\d+\.\d+ m?s  ", done.stdout, re.M)) >= 9, "every step says how long it took"
    assert not list(short_folder.glob("speaker-registry-*"))
