"""Tests of `import` and `register --batch` against a whole registry: folders and tables become voices, and
what was interrupted is resumed.
"""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from speaker_registry import RegistryClient, cli
from speaker_registry.cli.command import UNTRAINED
from speaker_registry.moving.candidates import Candidate, Texts
from speaker_registry.moving.transfer import Registering, Transfer
from speaker_registry.names import parse_speaker_name
from tests.integration.api.conftest import Start
from tests.integration.api.moving import Run, number_of_versions, runner
from tests.integration.api.registry import CLIP, OTHER_CLIP, PROFILE
from tests.queue_workers import wait_until
from tests.unit.audio import clips

MANY = 100
NEWER = "sha256:" + "2" * 64


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


def folder_of(path: Path, **clips_by_name: bytes) -> Path:
    path.mkdir(exist_ok=True)
    for name, data in clips_by_name.items():
        (path / f"{name}.wav").write_bytes(data)
        (path / f"{name}.txt").write_text(f"Text of {name}.")
    return path


def test_a_folder_becomes_voices_with_their_transcripts(start: Start, run: Run, tmp_path: Path):
    """A folder becomes voices. A bad clip is refused with the registry's reason, and harms no other."""
    registry = start()
    folder = folder_of(tmp_path / "in", Alice=CLIP, bob=OTHER_CLIP, broken=b"RIFF", silent=b"")
    outcome = run(registry, "import", folder, "--consent", "cons_9")
    assert outcome.status == 1
    assert outcome.states == {
        "Alice": "registered",
        "bob": "registered",
        "broken": "refused",
        "silent": "refused",
    }
    with RegistryClient(registry.url) as client:
        alice = client.version("alice@1")
        assert (alice.voice, alice.ref_text, alice.consent) == ("Alice", "Text of Alice.", "cons_9")
        assert client.clip("bob@1").data == OTHER_CLIP
    errors = [voice["error"] for voice in outcome.document["voices"] if voice["error"]]
    assert len(errors) == 2
    assert all(error["message"] for error in errors)


@pytest.mark.parametrize("untrained", [True, False])
def test_whoever_brings_many_voices_learns_that_they_will_be_useless(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, untrained: bool
):
    """Noise must not be taken for voices, whichever command registered them. Trained ones get no warning."""
    registry = start()
    registry.worker.announce(NEWER, untrained=untrained)
    folder = folder_of(tmp_path / "in", alice=CLIP)
    table = tmp_path / "voices.csv"
    table.write_text("name,file,text,consent\nBob,in/alice.wav,Hi.,c\n")

    def warned(*words: object) -> bool:
        assert cli.main(["--url", registry.url, *map(str, words)]) == 0
        return UNTRAINED in capsys.readouterr().err

    brought = ["import", folder, "--consent", "c"]
    commands = [brought, brought, ["register", "--batch", table], ["extract", "alice", "--profile", PROFILE]]
    assert [warned(*words) for words in commands] == [untrained] * 4
    documents = [
        runner(capsys)(registry, *words).document["voices"][0]
        for words in (brought, ["register", "--batch", table])
    ]
    assert [one.get("untrained", False) for one in documents] == [untrained] * 2


def test_a_second_run_sends_nothing_and_a_changed_clip_is_a_new_version(
    start: Start, run: Run, tmp_path: Path
):
    """Running it twice is harmless, so that whoever is unsure whether it was done can do it again."""
    registry = start()
    folder = folder_of(tmp_path / "in", alice=CLIP, bob=OTHER_CLIP)
    assert run(registry, "import", folder, "--consent", "c").document["registered"] == 2
    again = run(registry, "import", folder, "--consent", "c")
    assert (again.status, set(again.states.values())) == (0, {"unchanged"})
    for clip in (clips.wav(1.4), CLIP):  # the first clip comes back as a third version
        folder_of(folder, alice=clip)
        changed = run(registry, "import", folder, "--consent", "c")
        assert changed.states == {"alice": "registered", "bob": "unchanged"}
    with RegistryClient(registry.url) as client:
        assert [one.version for one in client.versions("alice")] == [3, 2, 1]


def test_a_dry_run_changes_nothing(start: Start, run: Run, tmp_path: Path):
    """A dry run says what would be registered and what is there already."""
    registry = start()
    folder = folder_of(tmp_path / "in", alice=CLIP)
    run(registry, "import", folder, "--consent", "c")
    folder_of(folder, bob=OTHER_CLIP)
    before = registry.stored()
    outcome = run(registry, "import", folder, "--consent", "c", "--dry-run")
    assert (outcome.status, outcome.states) == (0, {"alice": "unchanged", "bob": "planned"})
    assert registry.stored() == before


def test_two_voices_of_one_name_upload_nothing(start: Start, run: Run, tmp_path: Path):
    """Two voices of one name refuse the whole import before anything is sent."""
    registry = start()
    folder = folder_of(tmp_path / "in", Alice=CLIP, alice=OTHER_CLIP, bob=CLIP)
    outcome = run(registry, "import", folder, "--consent", "c")
    assert (outcome.status, outcome.document["error"]["code"]) == (1, "invalid_request")
    assert "1 such name: 'alice': Alice.wav, alice.wav" in outcome.document["error"]["message"]
    assert number_of_versions(registry) == 0


def test_a_sample_folder_of_vllm_omni_becomes_voices(start: Start, run: Run, tmp_path: Path):
    """Float samples and embeddings of vLLM-Omni's sample folder are registered with their texts."""
    registry, folder = start(), folder_of(tmp_path / "samples")
    header = {
        "name": "Alice",
        "consent": "c1",
        "sample_rate": "16000",
        "ref_text": "Hi.",
        "mime_type": "audio/wav",
    }
    tone = clips.tone(1.5, 16000)[:, 0]
    given = np.linspace(-1, 1, 1024, dtype=np.float32)
    (folder / "Alice_c1_1.safetensors").write_bytes(safetensors.numpy.save({"audio": tone}, metadata=header))
    header = {"name": "Eve", "consent": "c2", "embedding_source": "direct"}
    (folder / "Eve_c2_2.safetensors").write_bytes(
        safetensors.numpy.save({"speaker_embedding": given}, metadata=header)
    )
    outcome = run(registry, "import", folder)
    assert (outcome.status, outcome.states) == (0, {"Alice": "registered", "Eve": "registered"})
    with RegistryClient(registry.url) as client:
        alice = client.version("alice")
        assert (alice.ref_text, alice.consent) == ("Hi.", "c1")
        assert alice.audio is not None
        assert (alice.audio.sample_rate, alice.audio.seconds) == (16000, 1.5)
        assert client.fetch("eve", "qwen3-tts-0.6b").tensors["speaker_embedding"].tobytes() == given.tobytes()
    for options in (["--dry-run"], []):
        again = run(registry, "import", folder, *options)
        assert (again.status, set(again.states.values())) == (0, {"unchanged"})


def test_register_batch_reads_a_table(start: Start, run: Run, tmp_path: Path):
    """`register --batch` registers the lines of a table, and does not take options for one voice."""
    registry = start()
    folder_of(tmp_path / "clips", alice=CLIP)
    table = tmp_path / "voices.csv"
    table.write_text("name,file,text,consent\nAlice,clips/alice.wav,Hi.,c\nBob,clips/bob.wav,,c\n")
    outcome = run(registry, "register", "--batch", table)
    assert (outcome.status, outcome.states) == (1, {"Alice": "registered", "Bob": "refused"})
    usage = run(registry, "register", "--batch", table, "Alice")
    assert (usage.status, usage.document["error"]["code"]) == (2, "usage")


def import_task(name: str, clip: bytes = CLIP) -> Registering:
    texts = Texts(consent="c")
    return Registering(Candidate(name=parse_speaker_name(name), where=name, texts=texts, load=lambda: clip))


def test_an_upload_whose_answer_was_lost_makes_one_version(start: Start, tmp_path: Path):
    """Two imports that overlap make one version, because their idempotency keys are equal."""
    registry = start()
    barrier = threading.Barrier(2)

    def load() -> bytes:
        barrier.wait(30)
        return CLIP

    candidate = Candidate(name=parse_speaker_name("alice"), where="a", texts=Texts(consent="c"), load=load)
    reports = []

    def work() -> None:
        with RegistryClient(registry.url) as client:
            reports.append(Transfer(client).run([Registering(candidate)]))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 2
    assert all(not report.count("refused") and report.stopped is None for report in reports)
    assert number_of_versions(registry) == 1


def test_an_import_that_was_killed_is_resumed(start: Start, run: Run, tmp_path: Path):
    """A second run after SIGKILL registers the rest, and no voice has two versions."""
    registry = start()
    count = 60
    folder = folder_of(tmp_path / "in", **{f"v{number:03}": CLIP for number in range(count)})
    program = Path(sys.executable).with_name("speaker-registry")
    command = [program, "--url", registry.url, "import", folder, "--consent", "c"]
    with subprocess.Popen(command) as process:
        wait_until(lambda: number_of_versions(registry) >= 5)
        process.send_signal(signal.SIGKILL)
    there = number_of_versions(registry)
    assert there < count, "the first run was killed too late to tell anything"
    outcome = run(registry, "import", folder, "--consent", "c")
    assert outcome.status == 0
    assert outcome.document["registered"] + outcome.document["unchanged"] == count
    assert outcome.document["unchanged"] >= 5
    assert number_of_versions(registry) == count


def test_a_registry_that_goes_away_ends_the_import(start: Start, run: Run, tmp_path: Path):
    """The rest is reported as not tried, with the exit code for a registry that cannot be reached."""
    registry = start()
    url = f"http://127.0.0.1:{registry.port}"
    with RegistryClient(url, retries=0) as client:
        gone = RegistryClient("http://127.0.0.1:1", retries=0)
        report = Transfer(gone, jobs=1).run([import_task("a"), import_task("b")])
        assert report.stopped is not None
        assert (report.stopped.code, report.results) == ("unavailable", ())
        assert Transfer(client, jobs=1).run([import_task("a")]).count("registered") == 1


def test_many_voices_take_seconds(start: Start, tmp_path: Path):
    """Many voices take seconds, so that nobody writes a script of their own for it."""
    registry = start(max_uploaded=10 * MANY)
    began = time.monotonic()
    with RegistryClient(registry.url) as client:
        report = Transfer(client, jobs=8).run([import_task(f"v{number}") for number in range(MANY)])
        took = time.monotonic() - began
        assert report.count("registered") == MANY
        again = Transfer(client, jobs=8).run([import_task(f"v{number}") for number in range(MANY)])
        assert again.count("unchanged") == MANY
    assert took < 60, "a machine with little else to do takes two seconds"
