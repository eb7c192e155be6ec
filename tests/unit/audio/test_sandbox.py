"""Tests that the harm that a clip does to the library that decodes it stays with that clip."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from services.shared.audio import AudioDecoder
from services.shared.audio.processes import PROGRAM
from services.shared.configuration.uploads import UploadLimits
from speaker_registry.errors import InvalidAudio, SpeakerRegistryError, Unavailable, UnsupportedAudio
from tests.queue_workers import wait_until
from tests.unit.audio import clips
from tests.unit.audio.misbehaving import ATTEMPTS

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
LIMITS = UploadLimits()
WAV = clips.wav()
NO_FILTER = "import platform, soundfile; platform.machine = lambda: 'riscv64'"
"""No filter is known for that processor. soundfile looks for its library by the processor's name, so it comes
first.
"""


def misbehaving(
    reader: str, limits: UploadLimits = LIMITS, before: str = "", spare_processes: int = 0
) -> AudioDecoder:
    """A decoder whose guarded processes run `reader` of misbehaving.py instead of reading the clip.

    Without spare processes, each child is one that decodes.
    """
    program = (
        f"import os, sys; sys.path[:0] = [sys.argv[1], {str(Path(__file__).parent)!r}]\n"
        f"import misbehaving\n{before}\n"
        "from sandbox.zygote import serve\n"
        f"serve(lambda sniffed, _: misbehaving.{reader}(sniffed), *map(int, sys.argv[2:]))\n"
    )
    return AudioDecoder(limits, spare_processes=spare_processes, program=program)


def descendants() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if alive(process)]


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def zygote() -> psutil.Process:
    """The one that was started last."""
    found = [
        process
        for process in psutil.Process().children()
        if alive(process) and "sandbox" in str(process.cmdline())
    ]
    return max(found, key=lambda process: process.create_time())


@contextmanager
def in_background(decoder: AudioDecoder) -> Iterator[list[SpeakerRegistryError | None]]:
    """A decode under way in another thread. Afterwards the list holds how it ended."""
    ended: list[SpeakerRegistryError | None] = []

    def decode() -> None:
        try:
            decoder.decode(WAV)
        except SpeakerRegistryError as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=decode)
    thread.start()
    wait_until(lambda: zygote().children())
    yield ended
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("reader", ["allocate", "crash", "kill_itself", "babble", "answer_not_a_number"])
def test_a_process_that_breaks_costs_its_clip_and_no_other(reader: str):
    """Too much memory, a segmentation fault, the kernel's killer, an answer that is none: the clip is refused
    at once, and the next one is decoded all the same.
    """
    with misbehaving(reader) as decoder:
        for _ in range(2):
            with pytest.raises(
                InvalidAudio, match=r"^The WAV could not be decoded: it is damaged, or takes more"
            ):
                decoder.decode(WAV)


def test_what_is_refused_by_its_bytes_alone_never_reaches_a_library():
    """Reading the clip here would break the reader, and the file would be called damaged."""
    with misbehaving("crash") as decoder, pytest.raises(UnsupportedAudio, match="a PDF"):
        decoder.decode(b"%PDF-1.7\n")


def test_a_file_that_breaks_its_parser_costs_only_itself():
    """Also before it is known what it is."""
    before = "import sandbox.zygote\ndef sniff(data): os.kill(os.getpid(), 9)\nsandbox.zygote.sniff = sniff"
    with misbehaving("doze", before=before) as decoder:
        with pytest.raises(InvalidAudio, match=r"^The audio could not be decoded: it is damaged, or takes"):
            decoder.decode(WAV)
        assert zygote().is_running()


def test_a_zygote_whose_parent_ended_before_it_was_ready_ends_quietly():
    """A process that was stopped while it started left a traceback in the log."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    arguments = [str(ROOT / "services/shared/audio"), str(2**30), "10", "0"]
    with theirs:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROGRAM, *arguments],
            stdin=theirs.fileno(),
            capture_output=True,
            check=True,
        )
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("reader", ["spin", "sleep", "drip"])
def test_a_process_that_hangs_is_killed_in_time(reader: str):
    """A clip that keeps a decoder busy for ever would take one of four from everybody."""
    with misbehaving(reader, UploadLimits(decode_seconds=0.5, decoders=1)) as decoder:
        with pytest.raises(InvalidAudio, match=r"^The WAV could not be decoded within 0\.5s\.$"):
            decoder.decode(WAV)
        wait_until(lambda: not zygote().children())


def test_the_kernel_limits_a_process_even_if_nobody_looks_after_it():
    """The last resort, should the API be too busy to look at the clock, or system calls not be filtered."""
    limits = UploadLimits(decode_seconds=1.5, decode_memory_bytes=100 << 20)
    with misbehaving("sleep", limits) as decoder, in_background(decoder):
        child = zygote().children()[0]
        wait_until(lambda: child.rlimit(psutil.RLIMIT_CPU) == (2, 2))
        wait_until(lambda: child.rlimit(psutil.RLIMIT_CORE) == (0, 0))
        assert child.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
        assert child.rlimit(psutil.RLIMIT_NOFILE) == (0, 0)
        assert child.rlimit(psutil.RLIMIT_NPROC) == (0, 0)
        opened = {number: str(Path(f"/proc/{child.pid}/fd/{number}").readlink()) for number in range(4)}
        assert [opened.pop(number) for number in range(3)] == ["/dev/null"] * 3
        assert opened[3].startswith("socket:")
        assert child.num_fds() == 4
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n"
        assert child.rlimit(psutil.RLIMIT_AS)[1] < child.memory_info().vms + (110 << 20)
        decoder.close()


def claiming(claim: str) -> bytes:
    body = claim.encode().ljust(32, b"\0")
    return b"RIFF" + (68).to_bytes(4, "little") + WAV[8:40] + len(body).to_bytes(4, "little") + body


CLAIMS = [
    "samples=4000",
    "frames=4000",
    "frames=240001",
    "channels=0",
    "channels=9",
    "sample_rate=100",
    "sample_rate=1000000",
    "finished=0",
    "finished=0,samples=0",
    "rms=-1",
    "rms=nan",
    "clipped=2",
    "declared_seconds=1e300",
    "declared_seconds=-1",
]


def refuses(decoder: AudioDecoder, claim: str) -> bool:
    try:
        decoder.decode(claiming(claim))
    except InvalidAudio:
        return True
    return False


def test_an_impossible_answer_is_not_believed():
    """A process taken over by a clip may say anything: none of it may become a voice, or an exception in the
    API.
    """
    with misbehaving("claim_the_impossible") as decoder:
        assert not refuses(decoder, "declared_seconds=2")
        assert [claim for claim in CLAIMS if refuses(decoder, claim)] == CLAIMS


def test_a_taken_over_process_can_do_nothing_but_answer(monkeypatch: pytest.MonkeyPatch):
    """No file, no network, no program, no other process, no secret: this is what makes the rest bearable."""
    monkeypatch.setenv("SECRET_OF_THE_API", "hunter2")
    with misbehaving("try_everything") as decoder:
        flags = decoder.decode(WAV).audio.samples
    assert [name for name, flag in zip(ATTEMPTS, flags, strict=False) if flag] == []


def test_each_attempt_succeeds_outside_the_sandbox(monkeypatch: pytest.MonkeyPatch):
    """Otherwise the test above would prove nothing."""
    monkeypatch.setenv("SECRET_OF_THE_API", "hunter2")
    program = (
        "from tests.unit.audio.misbehaving import *\n"
        "print([name for name, attempt in ATTEMPTS.items() if succeeds(attempt)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=ROOT, stdin=subprocess.DEVNULL, check=True
    )
    expected = set(ATTEMPTS) - {
        "open a socket",
        "change its priority",
    }  # nobody listens; the user may not be root
    assert expected <= set(eval(done.stdout))


def test_no_system_call_is_left_where_the_kernel_can_filter_them(decoder: AudioDecoder):
    """Without the filter a process could free a descriptor's number and open a file in its place."""
    with misbehaving("sleep") as sleeping, in_background(sleeping):
        (child,) = zygote().children()
        wait_until(lambda: "Seccomp:\t2" in Path(f"/proc/{child.pid}/status").read_text())
        sleeping.close()


def test_fifty_uploads_at_once_are_all_decoded(decoder: AudioDecoder):
    """Uploads come in API threads; a mixed-up answer would give one person another one's voice."""
    lengths = [1.0 + index / 100 for index in range(50)]
    uploads = [clips.wav(seconds, 8000) for seconds in lengths]
    with ThreadPoolExecutor(50) as threads:
        decoded = list(threads.map(decoder.decode, uploads))
    assert [round(clip.audio.seconds, 3) for clip in decoded] == [round(seconds, 3) for seconds in lengths]


def test_when_all_decoders_are_busy_an_upload_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch):
    """A queue without end would hold every API thread, and with them the requests that need no decoder."""
    monkeypatch.setattr("services.shared.audio.decoder.WAIT_SECONDS", 0.1)
    with misbehaving("sleep", UploadLimits(decoders=1)) as decoder, in_background(decoder) as ended:
        with pytest.raises(Unavailable, match=r"All 1 decoders are busy") as caught:
            decoder.decode(WAV)
        assert caught.value.retry_after_seconds
        decoder.close()
    assert isinstance(ended[0], Unavailable)


def test_a_spare_process_that_was_killed_costs_nobody_a_clip():
    """When memory is short the kernel kills idle processes too. The clip that meets a killed process is not
    at fault.
    """
    for _ in range(3):
        with AudioDecoder(UploadLimits()) as decoder:
            wait_until(lambda: len(zygote().children()) == 1)
            spare = zygote().children()[0]
            spare.kill()
            wait_until(lambda process=spare: not alive(process))
            assert decoder.decode(WAV).audio.seconds == 2.0


def test_a_spare_process_serves_one_clip_and_is_replaced():
    """A process that has read one clip may be taken over: it must never see another person's."""
    with AudioDecoder(UploadLimits(), spare_processes=2) as decoder:
        before = spares_after(set())
        seen = set(before)
        for _ in range(4):
            decoder.decode(WAV)
            before = spares_after(before)
            seen |= before
        assert len(seen) == 2 + 4


def spares_after(before: set[int]) -> set[int]:
    """The two there are once one of those before is replaced: the one that was used ends a moment later."""
    found: list[set[int]] = []

    def replaced() -> bool:
        found.append({process.pid for process in zygote().children()})
        return len(found[-1]) == 2 and found[-1] != before

    wait_until(replaced)
    return found[-1]


@pytest.mark.slow
def test_two_hundred_decodes_leave_nothing_behind(decoder: AudioDecoder):
    """A descriptor, a process or a megabyte per upload would end a server within a day."""
    mp3, bad = clips.mp3(), WAV[:-20000]

    def decode_some(count: int) -> None:
        for index in range(count):
            if index % 4:
                decoder.decode((WAV, mp3)[index % 2])
            else:
                with pytest.raises(InvalidAudio):
                    decoder.decode(bad)

    decode_some(40)
    this = psutil.Process()
    descriptors, memory = this.num_fds(), this.memory_info().rss
    decode_some(200)
    assert this.num_fds() == descriptors
    assert this.memory_info().rss - memory < 8 << 20
    wait_until(lambda: len(zygote().children()) == 1)  # the spare one
    assert zygote().num_threads() == 1
    assert zygote().num_fds() == 3


def test_a_killed_zygote_is_replaced():
    """The kernel's killer may take it. The next upload must not need an operator."""
    with AudioDecoder(LIMITS) as decoder:
        for _ in range(3):
            zygote().kill()
            assert decoder.decode(WAV).audio.seconds == 2.0


def test_a_clip_whose_zygote_is_killed_is_decoded_by_the_next_one():
    """It was not the clip's fault, so the uploader must not be blamed."""
    with misbehaving("doze") as decoder, in_background(decoder) as ended:
        zygote().kill()
    assert ended == [None]


def test_closing_ends_every_process_and_what_they_were_doing():
    """A stopping server waits for nobody's clip."""
    with misbehaving("sleep") as decoder:
        with in_background(decoder) as ended:
            mine = {zygote(), *zygote().children()}
            decoder.close()
        wait_until(lambda: not any(map(alive, mine)))
        with pytest.raises(Unavailable):
            decoder.decode(WAV)
    assert isinstance(ended[0], Unavailable)


def test_a_system_without_room_for_a_process_is_not_the_uploaders_fault_either():
    """The failure must not cost the one process that could fork again a moment later."""
    before = "def fork(): raise BlockingIOError\nos.fork = fork"
    with misbehaving("doze", before=before) as decoder:
        first = zygote()
        with pytest.raises(Unavailable):
            decoder.decode(WAV)
        assert zygote() == first


def test_a_kernel_without_the_filter_is_told_to_the_operator_once(capfd: pytest.CaptureFixture[str]):
    """Clips are decoded with one guard less. Nobody would notice."""
    with misbehaving("doze", before=NO_FILTER) as decoder:
        for _ in range(2):
            decoder.decode(WAV)
    [line] = capfd.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "decoder.unfiltered"
    assert json.loads(line)["level"] == "warning"


def test_without_the_filter_nothing_can_be_opened_all_the_same():
    """No descriptor is left to open anything with: closing one makes no room for another."""
    with misbehaving("try_everything", before=NO_FILTER) as decoder:
        flags = decoder.decode(WAV).audio.samples
    succeeded = {name for name, flag in zip(ATTEMPTS, flags, strict=False) if flag}
    assert succeeded <= {"fork", "signal another process", "change its priority"}


@pytest.mark.parametrize(
    "clip", [clips.wav(), clips.flac(), clips.mp3(), clips.ogg(), clips.adts(), clips.m4a(), clips.webm(2.0)]
)
def test_without_the_filter_every_library_works_all_the_same(clip: bytes):
    """One that opened a file only now would find no descriptor for it."""
    program = f"import platform, soundfile; platform.machine = lambda: 'riscv64'\n{PROGRAM}"
    with AudioDecoder(LIMITS, program=program) as decoder:
        assert decoder.decode(clip).audio.seconds > 1


def test_a_filter_that_is_required_and_missing_is_an_outage():
    """An operator may prefer to accept no clips over decoding them with one guard less."""
    limits = UploadLimits(require_seccomp=True)
    with misbehaving("doze", limits) as decoder:
        assert decoder.decode(WAV).audio.seconds == 2.0
    decoder = misbehaving("doze", limits, before=NO_FILTER)
    with pytest.raises(Unavailable, match="SPEAKER_UPLOAD_REQUIRE_SECCOMP is set"):
        decoder.start()


@pytest.mark.parametrize("spare_processes", [0, 1])
def test_a_process_that_gets_no_filter_reads_no_clip_where_one_is_required(spare_processes: int):
    """The zygote's own look, at its start, promises nothing for the processes that it forks later."""
    before = "import sandbox.lockdown\nsandbox.lockdown.forbid_system_calls = lambda: False"
    limits = UploadLimits(require_seccomp=True)
    with misbehaving("doze", limits, before=before, spare_processes=spare_processes) as decoder:
        for _ in range(2):
            with pytest.raises(Unavailable, match="SPEAKER_UPLOAD_REQUIRE_SECCOMP is set"):
                decoder.decode(WAV)
    with misbehaving("doze", before=before) as decoder:
        assert decoder.decode(WAV).audio.seconds == 2.0


def test_a_kernel_with_the_filter_says_nothing(capfd: pytest.CaptureFixture[str]):
    with misbehaving("doze") as decoder:
        decoder.decode(WAV)
    assert capfd.readouterr().err == ""


def test_a_container_that_refuses_the_filter_is_noticed():
    """The answer to the call that installs the filter shows it. In this test an earlier filter forbids that
    call, as such a container does.
    """
    program = (
        "from services.shared.audio.sandbox.lockdown import *\n"
        "print(can_forbid_system_calls(), forbid_system_calls(), can_forbid_system_calls(), flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True True False\n"


def test_libraries_that_do_not_load_are_not_the_uploaders_fault():
    """A broken installation is an outage, not a bad clip."""
    decoder = AudioDecoder(LIMITS, program="raise SystemExit(1)")
    with pytest.raises(Unavailable):
        decoder.start()
    with pytest.raises(Unavailable):
        decoder.decode(WAV)


def test_signals_meant_for_the_server_do_not_disturb_a_decode():
    """A service manager signals every process it knows of; the upload in flight is to be answered all the
    same.
    """
    with misbehaving("doze") as decoder, in_background(decoder) as ended:
        signalled = zygote()
        for process in (signalled, *signalled.children()):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                process.send_signal(number)
        time.sleep(0.3)
        assert not ended
        assert alive(signalled)
    assert ended == [None]


SERVER = """
import sys, threading, time
print("imported", flush=True)
from services.shared.audio import AudioDecoder
from tests.unit.audio.test_sandbox import WAV, descendants, misbehaving

if __name__ == "__main__":
    decoder = misbehaving(sys.argv[1])
    decoder.start()
    threading.Thread(target=decoder.decode, args=(WAV,), daemon=True).start()
    while len(descendants()) < 2:
        time.sleep(0.01)
    try:
        print(*[process.pid for process in descendants()], flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        decoder.close()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """A process with a decode under way, started as `python -m` starts a server, and its children."""
    (tmp_path / "server_under_test.py").write_text(SERVER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    process = subprocess.Popen(
        [sys.executable, "-m", "server_under_test", "sleep"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "imported\n"
        yield process, [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    finally:
        process.kill()
        process.communicate()


def test_no_process_survives_a_server_that_is_killed(
    server: tuple["subprocess.Popen[str]", list[psutil.Process]],
):
    """kill -9 leaves it no chance to clean up. What stays behind would hold memory until a restart."""
    process, children = server
    assert len(children) == 2
    process.kill()
    wait_until(lambda: not any(map(alive, children)))


def test_ctrl_c_stops_everything_without_a_word(server: tuple["subprocess.Popen[str]", list[psutil.Process]]):
    """The terminal sends it to the whole process group. Tracebacks of processes that nobody knows of would
    frighten people.
    """
    process, children = server
    assert process.pid not in [os.getpgid(child.pid) for child in children]
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=10)
    assert output == "interrupted\n"  # and not imported a second time by a child
    assert "KeyboardInterrupt" not in errors
    wait_until(lambda: not any(map(alive, children)))


def test_the_asking_process_never_loads_a_decoding_library_nor_a_parser():
    """They take 40 MiB, and a crash in one of them would end the API. What parses files stays out as well:
    nobody vouches for their bytes.
    """
    program = (
        "import sys\n"
        "from services.shared.audio import AudioDecoder\n"
        "from services.shared.configuration.uploads import UploadLimits\n"
        "data = sys.stdin.buffer.read()\n"
        "with AudioDecoder(UploadLimits()) as decoder:\n"
        "    seconds = decoder.decode(data).audio.seconds\n"
        "mine = 'services.shared.audio.sandbox'\n"
        "parsers = {'sniff', 'sniffed', 'lookalikes', 'containers', 'containers.wav', 'reading'}\n"
        "print(seconds, {'av', 'soundfile', *(f'{mine}.{name}' for name in parsers)} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=WAV, capture_output=True, cwd=ROOT, check=True
    )
    assert done.stdout.decode() == "2.0 set()\n"


def test_the_decoding_process_is_small(decoder: AudioDecoder):
    """It is forked for every clip, and a fork copies its page tables: it must not import what the API
    imports.
    """
    decoder.decode(WAV)
    assert zygote().memory_info().rss < 90 << 20
