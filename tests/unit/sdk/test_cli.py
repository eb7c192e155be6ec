"""The command line: what it says, where it says it, and how it ends."""

import functools
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import speaker_registry
from speaker_registry import errors
from speaker_registry.artifact import ComputedOn
from speaker_registry.atomic_files import write_atomically
from speaker_registry.cli import campaigns, main, progress
from speaker_registry.cli.command import EXIT_CODES, HINTS, NOT_FOUND, REFUSED, UNTRAINED, USAGE
from speaker_registry.cli.program import parser
from speaker_registry.moving import transfer
from tests.unit.sdk.conftest import Outcome, Run
from tests.unit.sdk.fake_registry import (
    ECAPA,
    QWEN,
    URL,
    FakeRegistry,
    FakeTime,
    artifact_file,
    error_answer,
    file_headers,
    form_of,
)

EXAMPLES = Path(__file__).parents[3] / "examples" / "clips"


@pytest.fixture
def clip(tmp_path: Path) -> str:
    path = tmp_path / "clip.wav"
    path.write_bytes(b"RIFF")
    return str(path)


def test_a_clip_is_registered(run: Run, registry: FakeRegistry, clip: str):
    """The answer says which version the clip became."""
    outcome = run("register", "alice", clip, "--consent", "yes", "--ref-text", "hi", "--description", "warm")
    assert (outcome.status, outcome.err) == (0, "")
    assert "alice@1" in outcome.out
    form = form_of(registry.requests[0])
    assert (form["audio"], form["ref_text"], form["description"]) == (b"RIFF", b"hi", b"warm")


def test_a_transcript_may_come_from_a_file(run: Run, registry: FakeRegistry, clip: str, tmp_path: Path):
    """Its last line break is the editor's."""
    path = tmp_path / "clip.txt"
    path.write_text("Grüß Gott\n", encoding="utf-8")
    assert run("register", "alice", clip, "--consent", "yes", "--ref-text-file", str(path)).status == 0
    assert form_of(registry.requests[0])["ref_text"] == "Grüß Gott".encode()
    path.write_bytes(b"\xff\xfe")
    outcome = run("register", "alice", clip, "--consent", "yes", "--ref-text-file", str(path))
    assert outcome == Outcome(REFUSED, "", f"speaker-registry: {path} is not UTF-8 text\n")


def test_a_clip_may_come_from_standard_input(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """`ffmpeg … - | speaker-registry register alice -`."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"RIFF\xff")))
    assert run("register", "alice", "-", "--consent", "yes").status == 0
    assert form_of(registry.requests[0])["audio"] == b"RIFF\xff"


def test_an_embedding_is_registered_from_a_file(run: Run, registry: FakeRegistry, tmp_path: Path):
    """The numbers are sent as they are in the file."""
    path = tmp_path / "embedding.json"
    path.write_text("[0.5, 1]")
    assert run("register", "alice", "--embedding", str(path), "--consent", "yes").status == 0
    assert form_of(registry.requests[0])["embedding"] == b"[0.5,1.0]"


@pytest.mark.parametrize(
    "content", ["no json", '{"a": 1}', "[" * 100_000, "[1" + "0" * 400 + "]", '["0.1"]', "[true]"]
)
def test_a_file_that_is_no_embedding_is_refused(
    run: Run, registry: FakeRegistry, tmp_path: Path, content: str
):
    """Whatever the file holds, the command ends with an error that names it, and not with a traceback."""
    path = tmp_path / "embedding.json"
    path.write_text(content)
    outcome = run("register", "alice", "--embedding", str(path), "--consent", "yes", "--json")
    assert (outcome.status, outcome.error["code"]) == (REFUSED, "invalid_embedding")
    assert outcome.error["message"].startswith(str(path))
    assert registry.requests == []


def test_an_embedding_may_come_from_standard_input(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """`python embed.py | speaker-registry register alice --embedding -`. What is too long is not read."""
    for text, status in ((b"[0.5, 1]", 0), (b"no json", REFUSED), (b"[" + b"1," * 600_000, REFUSED)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert run("register", "alice", "--embedding", "-", "--consent", "yes").status == status
    assert [form_of(one)["embedding"] for one in registry.requests] == [b"[0.5,1.0]"]


def test_registering_can_wait_until_the_voice_is_usable(run: Run, registry: FakeRegistry, clip: str):
    """One document even so."""
    registry.news.append(lambda: registry.make_ready("alice", registry.voices["alice"][0]))
    outcome = run("register", "alice", clip, "--consent", "yes", "--wait", "--json")
    assert outcome.status == 0
    assert outcome.document["reference"] == "alice@1"
    assert outcome.document["ready"]["state"] == "ready"


def test_a_sample_voice_takes_a_free_name(run: Run, registry: FakeRegistry):
    """It comes with the package, and adds no version to a voice of somebody else."""
    registry.add_version("sample")
    outcome = run("sample")
    assert outcome.status == 0
    assert "Sample 2@1" in outcome.out
    form = form_of(registry.requests[-1])
    assert form["audio"] == (EXAMPLES / "wren.flac").read_bytes()
    assert form["ref_text"].decode() == (EXAMPLES / "wren.txt").read_text().strip()


def test_voices_are_listed(run: Run, registry: FakeRegistry):
    """The list is a table for people, and complete JSON for programs."""
    registry.add_version("alice")
    registry.add_version("声優", "pending")
    outcome = run("list", "--profile", ECAPA)
    assert outcome.out.splitlines()[0].split() == [
        "NAME",
        "VERSION",
        "NEWEST",
        "STATE",
        "READY",
        "FOR",
        "CREATED",
        "REASON",
    ]
    assert "alice" in outcome.out
    assert "声優" in outcome.out
    assert registry.requests[0].url.params["profile"] == ECAPA
    names = [voice["name"] for voice in run("list", "--json").document["data"]]
    assert names == ["alice", "声優"]


def test_a_name_in_a_table_cannot_drive_the_terminal(run: Run, registry: FakeRegistry):
    """Neither in JSON nor in an error."""
    registry.add_version("evil\x1b[2J\u202e")
    for words in (("list",), ("list", "--json"), ("show", "evil\u202e"), ("show", "evil\x1b[2J")):
        outcome = run(*words)
        assert not {"\x1b", "\u202e"} & set(outcome.out + outcome.err)


def test_a_voice_is_shown_and_so_is_a_version(run: Run, registry: FakeRegistry):
    """`NAME` is the voice, `NAME@REF` one version of it."""
    registry.add_version("alice", consent="signed", ref_text="hello")
    registry.add_version("alice", "pending")
    assert "newest 2" in run("show", "alice").out
    shown = run("show", "alice@1").out
    assert "signed" in shown
    assert "hello" in shown
    assert run("show", "alice", "--json").document["latest"] == 2
    assert run("show", "alice@1", "--json").document["version"] == 1


def test_an_artifact_is_written_whole(run: Run, registry: FakeRegistry, tmp_path: Path):
    """The file's own bytes, nothing beside it, with ordinary permissions."""
    version = registry.add_version("alice")
    path = tmp_path / "alice.safetensors"
    path.write_bytes(b"what was there before")
    with path.open("rb") as somebody_reads:
        outcome = run("fetch", "alice@1", "--profile", ECAPA, "-o", str(path), "--json")
        assert somebody_reads.read() == b"what was there before"
    assert outcome.status == 0
    assert path.read_bytes() == version.files[ECAPA]
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~current_umask()
    assert outcome.document["digest"].startswith("sha256:")
    assert (outcome.document["version"], outcome.document["size"]) == (1, len(version.files[ECAPA]))


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_refused_artifact_leaves_what_was_there(run: Run, registry: FakeRegistry, tmp_path: Path):
    """An engine may be reading it."""
    path = tmp_path / "alice.safetensors"
    path.write_bytes(b"before")
    registry.faults.append(
        httpx.Response(200, content=artifact_file(), headers={"etag": f'"sha256:{"0" * 64}"'})
    )
    outcome = run("fetch", "alice", "--profile", ECAPA, "-o", str(path), "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "digest_mismatch")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("output", "reason"), [("nowhere/a", "No such file or directory"), ("taken/a", "Not a directory")]
)
def test_a_write_that_fails_is_about_the_file_that_was_given(
    run: Run, registry: FakeRegistry, tmp_path: Path, output: str, reason: str
):
    """Not about one of ours beside it; and there is nothing yet to be warned of."""
    registry.add_version("alice").files[ECAPA] = artifact_file(untrained=True)
    (tmp_path / "taken").write_bytes(b"before")
    path = tmp_path / output
    outcome = run("fetch", "alice", "--profile", ECAPA, "-o", str(path))
    assert outcome == Outcome(1, "", f"speaker-registry: {path}: {reason}\n")


def test_a_device_is_written_to_not_replaced(tmp_path: Path):
    """`-o /dev/null` as root, by renaming, would leave a machine without /dev/null."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(path, b"bytes")
    assert os.read(reader, 10) == b"bytes"
    os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_an_export_does_not_replace_a_file_that_appears_meanwhile(
    run: Run, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without `--force`, nobody has said that it may."""
    path, quota = tmp_path / "x.tar", registry._quota()
    monkeypatch.setattr(registry, "_quota", lambda: path.write_bytes(b"of others") and quota)
    outcome = run("export", str(path))
    assert outcome == Outcome(1, "", f"speaker-registry: {path} exists; pass --force to replace it\n")
    assert path.read_bytes() == b"of others"
    assert run("export", str(path), "--force").status == 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_an_export_does_not_replace_a_pipe(run: Run, tmp_path: Path, force: tuple[str, ...]):
    """Without `--force`, the error does not advise it, because it would not help."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    outcome = run("export", str(path), *force)
    expected = f"speaker-registry: {path}: only a regular file can be replaced\n"
    assert outcome == Outcome(1, "", expected)
    assert path.is_fifo()


@pytest.mark.parametrize(("end", "path"), [(".svg", "waveform.svg"), (".PNG", "mel.png")])
def test_a_picture_is_written_to_a_file(
    run: Run, registry: FakeRegistry, tmp_path: Path, end: str, path: str
):
    """The end of the file's name says which picture it is. Another end is refused at once."""
    registry.add_version("alice")
    file = tmp_path / f"alice{end}"
    outcome = run("show", "alice@1", "--picture", str(tmp_path / "alice.gif"))
    assert outcome.status == 2
    assert ".svg (waveform) or .png (mel spectrogram)" in outcome.err
    assert not registry.requests
    outcome = run("show", "alice@1", "--picture", str(file))
    assert (outcome.status, file.read_bytes()) == (0, f"{path} of alice".encode())
    assert f"bytes of application/vnd.safetensors in {file}" in outcome.out
    assert registry.paths() == ["GET /v1/voices/alice/versions/1", f"GET /v1/voices/alice/versions/1/{path}"]


def test_a_clip_is_written_to_a_file(run: Run, registry: FakeRegistry, tmp_path: Path):
    """The answer says what kind of file it is."""
    path = tmp_path / "alice.wav"
    headers = {**file_headers(b"RIFF", 2), "content-type": "audio/wav"}
    for words in ([], ["--json"]):
        registry.faults.append(httpx.Response(200, content=b"RIFF", headers=headers))
        outcome = run("clip", "alice@2", "-o", str(path), *words)
        assert (outcome.status, path.read_bytes()) == (0, b"RIFF")
    assert outcome.document == {"path": str(path), "size": 4, "mime_type": "audio/wav"}


def test_an_artifact_can_go_to_standard_output(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """Nothing but its bytes."""
    version = registry.add_version("alice")
    piped = io.TextIOWrapper(io.BytesIO())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", piped)
        assert main(["fetch", "alice", "--profile", ECAPA, "-o", "-"]) == 0
    piped.buffer.seek(0)
    assert piped.buffer.read() == version.files[ECAPA]


def test_standard_output_holds_either_json_or_an_artifact(run: Run, registry: FakeRegistry):
    """Both would be neither."""
    for words in (("--json", "fetch", "alice"), ("fetch", "alice", "--json")):
        outcome = run(*words, "--profile", ECAPA, "-o", "-")
        assert (outcome.status, outcome.out, outcome.error["code"]) == (2, "", "usage")
    assert registry.requests == []


def test_an_artifact_is_not_thrown_at_a_terminal(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """Its bytes would be obeyed."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run("fetch", "alice", "--profile", ECAPA, "-o", "-").status == 2


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("1774969200", "1774969200.0"),
        ("2026-03-31T15:00Z", "1774969200.0"),
        ("2026-03-31T17:00+02:00", "1774969200.0"),
    ],
)
def test_jobs_are_listed_from_a_time_on(run: Run, registry: FakeRegistry, given: str, sent: str):
    """People type a time as clocks and logs show it."""
    assert run("jobs", "--created-after", given).status == 0
    assert registry.requests[-1].url.params["created_after"] == sent


def test_jobs_are_counted_in_one_request(run: Run, registry: FakeRegistry):
    """An operator wants to know how long the queue is, not to count its lines."""
    registry.add_version("alice", "pending")
    for name in ("bob", "carol"):
        registry.add_version(name)
    outcome = run("jobs", "--summary")
    assert [request.url.path for request in registry.requests] == ["/v1/jobs/summary"]
    head, every, profile = (re.split(r" {2,}", line.strip()) for line in outcome.out.splitlines())
    assert head[:4] == ["PROFILE", "QUEUED", "PROCESSING", "SUCCEEDED"]
    assert every == ["all profiles", "1", "0", "2", "0", "0", "0", "1970-01-01 00:00:01Z", "0", "2"]
    assert profile == [ECAPA, *every[1:]]
    assert run("jobs", "--summary", "--json").document["profiles"][0]["counts"]["succeeded"] == 2


@pytest.mark.parametrize(
    "filters", [("--state", "failed"), ("--voice", "al"), ("--profile", "p"), ("--created-after", "0")]
)
def test_a_summary_of_jobs_takes_no_filter(run: Run, registry: FakeRegistry, filters: tuple[str, str]):
    """A filter that was ignored would show numbers of something else."""
    outcome = run("jobs", "--summary", *filters)
    assert (outcome.status, registry.requests) == (2, [])
    assert f"jobs --summary counts all jobs, and takes no {filters[0]}" in outcome.err
    assert run("jobs", "--summary", "--all").status == run("jobs", "--summary", "--limit", "5").status == 2


@pytest.mark.parametrize("command", ["list", "jobs"])
def test_a_long_list_ends_after_fifty_items_and_says_so(run: Run, registry: FakeRegistry, command: str):
    """A registry has a million voices. Nobody reads them all, and reading them costs the registry minutes."""
    for number in range(51):
        registry.add_version(f"voice-{number:03}")
    outcome = run(command)
    assert len(outcome.out.splitlines()) == 1 + 50
    assert outcome.err == (
        "speaker-registry: there are more than these 50; --limit N shows N, and --all shows all\n"
    )
    short, whole = run(command, "--json"), run(command, "--all", "--json")
    assert (len(short.document["data"]), short.document["has_more"]) == (50, True)
    assert (len(whole.document["data"]), whole.document["has_more"], whole.err) == (51, False, "")
    assert run(command, "--limit", "51").err == ""
    assert run(command, "--limit", "5", "--all").status == 2


def test_a_useless_voice_is_called_so(run: Run, registry: FakeRegistry, tmp_path: Path):
    """Untrained weights are for trying out; nobody must find out by listening."""
    version = registry.add_version("alice")
    version.files[ECAPA] = artifact_file(untrained=True)
    assert "untrained" in run("fetch", "alice", "--profile", ECAPA, "-o", str(tmp_path / "a")).err


@pytest.mark.parametrize(
    "words", ["list", "show alice", "show alice@1", "wait alice", "wait alice --profile"]
)
def test_every_command_says_that_a_voice_is_useless(run: Run, registry: FakeRegistry, words: str):
    """The warning goes to standard error, so that it is also seen beside JSON. Trained voices get none."""
    given = [*words.split(), ECAPA] if words.endswith("--profile") else words.split()
    registry.add_version("alice", untrained=True)
    outcome = run(*given)
    assert "ready, untrained" in outcome.out
    assert outcome.err == f"speaker-registry: {UNTRAINED}\n"
    assert json.loads(run(*given, "--json").err) == {"warning": {"message": UNTRAINED}}
    registry.voices.clear()
    registry.add_version("alice")
    assert "untrained" not in str(run(*given))


def test_a_registration_that_will_be_useless_says_so(run: Run, registry: FakeRegistry, clip: str):
    """Whoever registers voices for production learns it now and not when speech is made with them."""
    registry.untrained = True
    assert run("register", "alice", clip, "--consent", "yes").err == f"speaker-registry: {UNTRAINED}\n"


def test_the_warning_is_coloured_on_a_terminal(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """In a file or a log the codes of colours would only be in the way, and NO_COLOR turns them off."""
    registry.add_version("alice", untrained=True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run("show", "alice").err == f"\x1b[1;33mspeaker-registry: {UNTRAINED}\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("show", "alice").err


def test_custom_weights_are_named(run: Run, registry: FakeRegistry, tmp_path: Path):
    """The voice will not sound as with the published ones."""
    registry.add_version("alice").files[ECAPA] = artifact_file(
        custom_weights=True, computed_on=ComputedOn(device="cuda", gpu="NVIDIA H200")
    )
    outcome = run("fetch", "alice", "--profile", ECAPA, "-o", str(tmp_path / "a"))
    assert "made with custom weights" in outcome.err
    assert "computed on cuda, NVIDIA H200" in outcome.out
    document = run("fetch", "alice", "--profile", ECAPA, "-o", str(tmp_path / "a"), "--json").document
    assert document["custom_weights"] is True
    assert document["computed_on"] == {"device": "cuda", "gpu": "NVIDIA H200"}


def test_waiting_ends_with_where_the_version_stands(run: Run, registry: FakeRegistry):
    """A wait for a failed version ends with the reason."""
    version = registry.add_version("alice", "pending")
    registry.news.append(lambda: registry.make_ready("alice", version))
    outcome = run("wait", "alice", "--profile", ECAPA)
    assert (outcome.status, outcome.err) == (0, "")
    assert "alice@1 is ready" in outcome.out
    failed = registry.add_version("bob", "failed")
    failed.errors[ECAPA] = "silent"
    outcome = run("wait", "bob", "--json")
    assert (outcome.status, outcome.out, outcome.error["code"]) == (6, "", "artifact_failed")
    registry.add_version("carol", "pending")
    assert run("wait", "carol", "--timeout", "0", "--json").error["code"] == "artifact_not_ready"


def campaign(state: str) -> httpx.Response:
    """Return the answer about the campaign `c1`."""
    progress = {"voices": 4, "ready": 4, "failed": 0, "skipped": 0, "under_way": 0}
    shown = {"id": "c1", "profile": ECAPA, "fingerprint": "sha256:1", "state": state, "coverage": 1.0}
    times = {"created_at": 1, "changed_at": 1, "promotes": False}
    sample = {"wanted": 0, "compared": 0, "tensors": {}}
    return httpx.Response(200, json={**shown, **times, "progress": progress, "sample": sample})


def test_the_wait_for_a_campaign_continues_over_a_restart_of_the_registry(
    run: Run, registry: FakeRegistry, time: FakeTime, monkeypatch: pytest.MonkeyPatch
):
    """A campaign takes hours. It continues when its wait ends, so the error names it."""
    monkeypatch.setattr(campaigns, "time", SimpleNamespace(monotonic=time, sleep=time.sleep))
    registry.faults.extend([campaign("running"), *[httpx.ConnectError("refused")] * 5, campaign("complete")])
    assert run("campaigns", "wait", ECAPA, "c1").status == 0
    registry.faults.extend([campaign("running"), *[httpx.ConnectError("refused")] * 50])
    outcome = run("campaigns", "wait", ECAPA, "c1", "--timeout", "20", "--json")
    assert (outcome.status, outcome.error["code"]) == (3, "unavailable")
    assert outcome.error["message"].endswith("; campaign c1 continues without this command")
    assert len(registry.faults) > 30
    registry.faults.clear()


def test_an_interrupted_wait_names_the_campaign(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """`campaigns start --wait` has not shown the id before, and the campaign goes on."""

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaigns, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=interrupted))
    registry.faults.append(campaign("running"))
    expected = "speaker-registry: interrupted; campaign c1 continues without this command\n"
    assert run("campaigns", "start", ECAPA, "sha256:" + "1" * 64, "--wait") == Outcome(130, "", expected)


def test_a_bar_is_drawn_only_for_somebody_who_watches(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """A log full of bars helps nobody."""
    version = registry.add_version("alice", "processing")
    registry.news.append(lambda: registry.make_ready("alice", version))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    watched = run("wait", "alice")
    assert "encoding" in watched.err
    assert "1/1" in watched.err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run("wait", "alice", "--json").err == ""


def test_jobs_and_profiles_are_listed(run: Run, registry: FakeRegistry):
    """The lists show which worker makes what, and which could."""
    registry.add_version("alice", "failed")
    assert "extractor_error" in run("jobs", "--voice", "alice", "--state", "failed").out
    assert dict(registry.requests[0].url.params) == {"voice": "alice", "state": "failed", "limit": "51"}
    assert len(run("jobs", "--limit", "1", "--json").document["data"]) == 1
    assert ECAPA in run("profiles", "list").out
    assert run("profiles", "list", "--json").document["data"][0]["id"] == ECAPA


def test_profiles_are_listed_with_the_terms_of_their_weights(run: Run, monkeypatch: pytest.MonkeyPatch):
    """A developer who chooses a profile for a product must see that its terms forbid that."""
    plain = FakeRegistry._profile

    def restricted(registry: FakeRegistry, profile: str) -> dict[str, Any]:
        terms = {"licence": "CC-BY-NC-4.0", "licence_notes": "Ask\nfirst.", "not_extractable": "No encoder."}
        return plain(registry, profile) | (terms if profile == ECAPA else {})

    monkeypatch.setattr(FakeRegistry, "_profile", restricted)
    lines = run("profiles", "list").out.splitlines()
    assert lines[0].endswith("LICENCE")
    assert any(line.startswith(ECAPA) and line.endswith("CC-BY-NC-4.0") for line in lines)
    assert lines[-3:] == ["", f"{ECAPA}: Ask\\nfirst.", f"{ECAPA}: No encoder."]


def test_profiles_say_whose_encoder_failed_its_proof_and_whose_weights_are_custom(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    """Neither can be told by listening to one voice."""
    plain = FakeRegistry._profile
    failed = {"worker": "gpu-7", "device": "cuda:0", "reason": "codes: 12.00% of the codes are equal"}

    def unproven(registry: FakeRegistry, profile: str) -> dict[str, Any]:
        return plain(registry, profile) | {"custom_weights": True, "failed_proofs": [failed]}

    monkeypatch.setattr(FakeRegistry, "_profile", unproven)
    shown = run("profiles", "list").out
    assert f"{ECAPA}: not served by gpu-7 (cuda:0). codes: 12.00% of the codes are equal" in shown
    assert "custom weights" in shown


NEWER, FORMER = "sha256:" + "2" * 64, "sha256:" + "3" * 64


def test_a_profile_is_shown_with_its_former_encoders_and_what_a_candidate_differs_in(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    """An operator decides about a promotion, and about the way back, with what this command says."""
    plain = FakeRegistry._profile
    candidate = {
        "fingerprint": NEWER,
        "workers": 3,
        "differs": {"dtype": ["float32", "bfloat16"], "x": [None, 1]},
    }

    def prepared(registry: FakeRegistry, profile: str) -> dict[str, Any]:
        return plain(registry, profile) | {"former": [FORMER], "candidates": [candidate]}

    monkeypatch.setattr(FakeRegistry, "_profile", prepared)
    lines = run("profiles", "show", ECAPA).out.splitlines()
    assert any(line.startswith("former") and line.endswith(FORMER) for line in lines)
    assert lines[-3:] == [
        f"candidate {NEWER}, live workers: 3",
        "  dtype: float32 now, bfloat16 with this candidate",
        "  x: absent now, 1 with this candidate",
    ]
    assert run("profiles", "show", ECAPA, "--json").document["candidates"][0]["workers"] == 3


def test_an_unknown_profile_is_not_found_and_the_others_are_named(run: Run):
    """A mistyped name is answered with those that there are."""
    result = run("profiles", "show", "ecapo")
    assert result.status == NOT_FOUND
    assert "'ecapo'" in result.err
    assert ECAPA in result.err


def test_promoting_an_encoder_asks_first_and_sends_what_was_said(run: Run, registry: FakeRegistry):
    """A promotion has every voice extracted again, so a script has to say that it means it."""
    refused = run("profiles", "promote", ECAPA, NEWER)
    assert refused.status == USAGE
    assert "--yes" in refused.err
    assert registry.requests == []
    registry.faults.append(httpx.Response(200, json=registry._profile(ECAPA) | {"fingerprint": NEWER}))
    done = run("profiles", "promote", ECAPA, NEWER, "--force", "--yes")
    assert done.out.startswith(f"promoted {NEWER}\n")
    assert registry.paths() == [f"POST /v1/profiles/{ECAPA}/promote"]
    assert json.loads(registry.requests[0].content) == {"fingerprint": NEWER, "when": "now", "force": True}


def test_a_promotion_with_half_a_fingerprint_is_refused_before_it_is_sent(run: Run, registry: FakeRegistry):
    """The message names what is accepted."""
    result = run("profiles", "promote", ECAPA, "sha256:2", "--yes")
    assert result.status == REFUSED
    assert "sha256:2" in result.err
    assert registry.requests == []


def test_deleting_asks_first(run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch):
    """A person; a script has to say that it means it."""

    def answer(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)

    registry.add_version("alice")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert run("delete", "alice").status == 2
    answer("\n")
    assert run("delete", "alice").status == 1
    assert "alice" in registry.voices
    answer("y\n")
    assert run("delete", "alice").status == 0
    assert registry.voices == {}
    registry.add_version("bob")
    assert run("delete", "bob", "--yes", "--json").document == {"name": "bob", "deleted": True}


def test_deleting_the_last_version_tells_that_the_voice_is_deleted(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """The voice can be undeleted, and a single version cannot."""

    def delete(version: str) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        return run("delete", version)

    registry.add_version("alice")
    registry.add_version("alice")
    one, last = delete("alice@1"), delete("alice@2")
    assert (one.out, "It cannot be undeleted" in one.err) == ("deleted alice@1\n", True)
    assert "It is the last one, so the voice is deleted with it." in last.err
    assert "`speaker-registry undelete alice` restores it" in last.out
    assert registry.voices == {}
    registry.add_version("bob")
    registry.add_version("bob")
    deleted = [run("delete", f"bob@{number}", "--yes", "--json").document for number in (1, 2)]
    assert [one["voice_deleted"] for one in deleted] == [False, True]


def test_the_question_before_deleting_a_version_claims_only_what_is_known(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is asked about a version that is missing. A key that may not read voices gets both outcomes."""
    registry.add_version("alice")
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    missing = run("delete", "alice@2")
    assert (missing.status, "[y/N]" in missing.err) == (NOT_FOUND, False)
    registry.faults.append(error_answer(403, "permission_denied"))
    unknown = run("delete", "alice@1")
    assert "It cannot be undeleted. If it is the last one, the voice is deleted with it." in unknown.err
    assert "alice" in registry.voices


def test_a_key_that_may_only_delete_versions_deletes_them(run: Run, registry: FakeRegistry):
    """Such a key cannot learn whether the voice is still there."""
    registry.add_version("alice")
    registry.faults.extend([httpx.Response(204), error_answer(403, "permission_denied")])
    deleted = run("delete", "alice@1", "--yes", "--json")
    assert (deleted.status, deleted.document["voice_deleted"]) == (0, None)


def test_an_error_of_the_registry_is_one_line_and_no_traceback(run: Run, registry: FakeRegistry):
    """The line has the request's id, which an operator asks for first."""
    registry.faults.append(
        error_answer(404, "voice_not_found", "there is no voice 'bob'", request_id="req_9")
    )
    outcome = run("show", "bob")
    assert outcome == Outcome(5, "", "speaker-registry: there is no voice 'bob' (req_9)\n")
    registry.faults.append(error_answer(404, "voice_not_found", "no", param="name", request_id="req_9"))
    assert run("show", "bob", "--json").error == {
        "code": "voice_not_found", "message": "no", "param": "name", "request_id": "req_9",
    }  # fmt: skip


@pytest.mark.parametrize("code", HINTS)
def test_an_error_that_advises_a_request_is_followed_by_the_command_for_it(
    run: Run, registry: FakeRegistry, code: str
):
    """A user of the command line need not know the routes. Programs act on the code."""
    registry.faults.append(error_answer(409, code, "delete it first via DELETE /v1/audio/voices/bob."))
    assert run("show", "bob").err.splitlines() == [
        "speaker-registry: delete it first via DELETE /v1/audio/voices/bob.",
        f"hint: {HINTS[code]}",
    ]
    registry.faults.append(error_answer(409, code, "no"))
    assert "hint" not in run("show", "bob", "--json").err


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limited"), (503, "unavailable")])
@pytest.mark.parametrize(
    "words", ["list", "sync here --format speaker-samples --profile p", "push http://a.test --profile p"]
)
def test_a_registry_that_asks_for_a_long_pause_cannot_answer_now(
    run: Run,
    registry: FakeRegistry,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: str,
    status: int,
    code: str,
):
    """Schedulers try again later by the exit code, and people read when."""
    monkeypatch.chdir(tmp_path)
    registry.faults.append(error_answer(status, code, "not now", headers={"retry-after": "3600"}))
    expected = "speaker-registry: not now\nhint: try again in 3600 s\n"
    assert run(*words.split()) == Outcome(3, "", expected)


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limited"), (503, "unavailable")])
def test_an_import_ends_early_if_the_registry_asks_for_a_long_pause(
    run: Run, registry: FakeRegistry, tmp_path: Path, status: int, code: str
):
    """Standard error says when to run the command again, as for `sync`. It was in the report alone, and with
    `--json` nowhere.
    """
    (tmp_path / "alice.wav").write_bytes(b"RIFF")
    warning = "ended early: not now; run the same command again in 3600 s to continue, what is registered is"
    for option, begins in (("--jobs=1", f"speaker-registry: {warning}"), ("--json", '{"warning": ')):
        registry.faults.append(error_answer(status, code, "not now", headers={"retry-after": "3600"}))
        outcome = run("import", str(tmp_path), "--consent", "yes", option)
        assert outcome.status == 3
        assert outcome.err.startswith(begins)
        assert warning in outcome.err
    assert json.loads(outcome.out)["stopped"] == {"code": code, "message": "not now"}


def test_an_interrupted_import_says_how_far_it_came(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The report is lost with the process, and with it what was sent."""

    def interrupted(futures: Sequence[Future[None]]) -> None:
        wait(futures)
        raise KeyboardInterrupt

    (tmp_path / "alice.wav").write_bytes(b"RIFF")
    monkeypatch.setattr(transfer, "wait", interrupted)
    outcome = run("import", str(tmp_path), "--consent", "yes")
    assert (outcome.status, outcome.out) == (130, "")
    assert outcome.err.startswith("speaker-registry: interrupted after 1 of 1 voices; run the same command")


@pytest.mark.parametrize(
    ("words", "notice"),
    [
        ("list", "speaker-registry: waiting 20 s, as the registry asks: slower\n"),
        ("list --json", '{"pause": {"seconds": 20, "code": "rate_limited", "message": "slower"}}\n'),
    ],
)
def test_a_pause_that_the_client_makes_is_announced(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, words: str, notice: str
):
    """A command that is silent for a minute seems to hang."""
    retrying = functools.partial(speaker_registry.RegistryClient, retries=1)
    monkeypatch.setattr(speaker_registry, "RegistryClient", retrying)
    registry.faults.append(error_answer(429, "rate_limited", "slower", headers={"retry-after": "20"}))
    outcome = run(*words.split())
    assert outcome.status == 0
    assert outcome.err == notice


def test_the_advised_commands_are_ones_that_there_are():
    """The advised commands and their options exist, and the codes are those of errors."""
    assert HINTS.keys() <= errors.BY_CODE.keys()
    commands = [words for said in HINTS.values() for words in re.findall(r"`speaker-registry ([^`]*)`", said)]
    assert len(commands) == len(HINTS)
    for words in commands:
        parser().parse_args(words.replace("SECONDS", "60").split())


@pytest.mark.parametrize("content", [b"RIFF", b"", b"\x02\0\0\0\0\0\0\0{]"])
def test_what_is_no_safetensors_file_is_not_sent(
    run: Run, registry: FakeRegistry, tmp_path: Path, content: bytes
):
    """The path is what whoever mistyped it looks for; the registry does not know it."""
    path = tmp_path / "voice.pt"
    path.write_bytes(content)
    outcome = run("put", "alice@1", str(path), "--profile", ECAPA)
    assert outcome.status == 1
    assert outcome.err.startswith(f"speaker-registry: {path} is not an artifact: ")
    assert outcome.err.endswith("; accepted: a safetensors file\n")
    assert registry.requests == []


def test_no_registry_is_a_status_of_its_own(run: Run, registry: FakeRegistry):
    """Scripts wait and try again on 3, and only on 3."""
    registry.faults.extend([httpx.ConnectError("refused"), httpx.Response(503)])
    assert run("list").status == 3
    assert run("list", "--json").error["code"] == "unavailable"


@pytest.mark.parametrize(
    "words",
    [
        ("keys",),
        ("frobnicate",),
        ("list", "--state", "sleepy"),
        ("register", "alice", "--consent", "yes"),
        ("register", "alice", "clip.wav"),
        ("fetch", "alice", "--profile", ECAPA),
        ("list", "--js"),
        ("--url", "ftp://x", "list"),
    ],
)
def test_wrong_usage_is_2(run: Run, registry: FakeRegistry, words: tuple[str, ...]):
    """The message is JSON if `--json` is given."""
    outcome = run(*words)
    assert outcome.status == 2
    assert outcome.err.startswith("speaker-registry: ")
    assert run("--json", *words).error["code"] == "usage"
    assert registry.requests == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("list", "--limit", "0"), "--limit: '0'; accepted: whole numbers from 1"),
        (
            ("jobs", "--created-after", "yesterday"),
            "--created-after: 'yesterday'; accepted: Unix seconds from 0",
        ),
        (
            ("fetch", "alice", "--profile", ECAPA, "-o", "a", "--wait", "-5"),
            "--wait: '-5'; accepted: seconds from 0",
        ),
        (("wait", "alice", "--timeout", "nan"), "--timeout: 'nan'; accepted: seconds from 0"),
        (("wait", "alice", "--timeout", "inf"), "--timeout: 'inf'; accepted: seconds from 0 to 31536000"),
        (("list", "--limit", "9" * 30), "accepted: whole numbers from 1 to 1000000000"),
        (("keys", "rotate", "4dtqrws3", "--grace", "0.5"), "--grace: '0.5'; accepted: whole numbers from 0"),
        (
            ("keys", "create", "x", "--scope", "engine", "--expires-in-days", "9" * 400),
            "accepted: whole numbers from 1 to 36500",
        ),
        (
            ("keys", "create", "x", "--scope", "engine", "--requests-per-minute", "1000000001"),
            "accepted: whole numbers from 1 to 1000000000",
        ),
    ],
)
def test_a_number_that_makes_no_sense_is_wrong_usage(
    run: Run, registry: FakeRegistry, words: tuple[str, ...], says: str
):
    """Taken silently, it would be a wait that does not wait."""
    outcome = run(*words)
    assert outcome.status == 2
    assert says in outcome.err
    assert registry.requests == []


def test_a_whole_key_is_not_shown_when_it_is_revoked(run: Run, registry: FakeRegistry):
    """The terminal keeps what it shows."""
    token = "sreg_4dtqrws3_" + "S" * 43 + "_0aB1cD"
    registry.faults.extend(httpx.Response(204) for _ in range(2))
    assert run("keys", "revoke", token, "--yes").out == "revoked 4dtqrws3\n"
    revoked = {"id": "4dtqrws3", "revoked": True, "children": False}
    assert run("keys", "revoke", token, "--yes", "--json").document == revoked
    assert registry.paths() == ["DELETE /v1/keys/4dtqrws3"] * 2


def test_a_key_is_revoked_with_what_it_made_where_that_is_said(run: Run, registry: FakeRegistry):
    """Without the option the keys that it made stay valid, so the answer says which of the two was done."""
    registry.faults.append(httpx.Response(204))
    said = run("keys", "revoke", "4dtqrws3", "--children", "--yes").out
    assert said == "revoked 4dtqrws3 and every key that was made with it\n"
    assert str(registry.requests[-1].url).endswith("/v1/keys/4dtqrws3?children=true")


def test_options_for_all_commands_stand_before_or_after_the_command(run: Run, registry: FakeRegistry):
    """Nobody remembers which."""
    for words in (("--json", "--url", "http://a.test", "list"), ("list", "--json", "--url", "http://a.test")):
        assert run(*words).document == {"object": "list", "data": [], "has_more": False}
        assert registry.requests[-1].url.host == "a.test"


def test_a_missing_address_is_wrong_usage(run: Run, monkeypatch: pytest.MonkeyPatch):
    """It says what to set."""
    monkeypatch.delenv("SPEAKER_REGISTRY_URL")
    outcome = run("list")
    assert outcome.status == 2
    assert "SPEAKER_REGISTRY_URL" in outcome.err


def test_a_clip_that_cannot_be_read_is_named(run: Run, registry: FakeRegistry):
    """The message has the system's own words for the reason."""
    outcome = run("register", "alice", "/nowhere/clip.wav", "--consent", "yes")
    assert (outcome.status, outcome.err) == (
        1,
        "speaker-registry: /nowhere/clip.wav: No such file or directory\n",
    )


def test_an_interrupt_is_130(run: Run, registry: FakeRegistry):
    """An interrupt ends the command without a traceback, as shells expect it."""

    def interrupted(_: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    registry.faults.append(interrupted)
    assert run("list") == Outcome(130, "", "")


def test_the_version_is_told(run: Run):
    """Bug reports name the version."""
    assert run("--version").out == f"speaker-registry {speaker_registry.__version__}\n"
    assert run("--help").status == 0


# -- how commands end


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (error_answer(400, "invalid_request"), 1),
        (error_answer(409, "voice_exists"), 1),
        (error_answer(503, "voice_damaged"), 1),
        (error_answer(500, "internal_error"), 1),
        (error_answer(429, "quota_exceeded"), 1),
        (error_answer(503, "unavailable"), 3),
        (error_answer(429, "rate_limited"), 3),
        (httpx.ConnectError("no route"), 3),
        (error_answer(401, "invalid_api_key"), 4),
        (error_answer(403, "permission_denied"), 4),
        (error_answer(404, "voice_not_found"), 5),
        (error_answer(404, "profile_unknown"), 5),
        (error_answer(409, "artifact_failed"), 6),
        (error_answer(409, "artifact_not_ready"), 8),
    ],
    ids=lambda one: str(one) if isinstance(one, int) else "",
)
def test_every_kind_of_end_has_an_exit_code(
    run: Run, registry: FakeRegistry, answer: httpx.Response | Exception, status: int
):
    """Scripts act by it: what is not there is registered, what is not ready is waited for."""
    registry.faults.append(answer)
    assert run("show", "alice").status == status


def test_a_wait_that_timed_out_is_told_from_a_voice_that_is_not_there(run: Run, registry: FakeRegistry):
    """The one is worth another try, the other is not."""
    registry.add_version("alice", "pending")
    assert run("wait", "alice", "--timeout", "0").status == 8
    assert run("wait", "nobody", "--timeout", "0").status == 5
    registry.add_version("bob", "failed")
    assert run("wait", "bob", "--timeout", "0").status == 6


def test_the_help_names_every_exit_code(run: Run):
    """Nobody should have to read the source for them."""
    said = run("--help").out
    documented = {int(one) for one in re.findall(r"^ +(\d+)  \S", said, re.MULTILINE)}
    assert documented == {0, 1, 2, 3, 4, 5, 6, 7, 8, 130, 141}
    assert documented == set(EXIT_CODES)


def test_without_a_command_the_help_is_shown(run: Run):
    """`gh` and `hf` do the same, because a user who types the bare name wants to know what there is."""
    outcome = run()
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == run("--help").out


# -- completion


def completions(line: str, *, shell: str = "bash") -> list[str]:
    """Return what a shell is told when a user presses Tab at the end of the line."""
    code = "import os, sys; from speaker_registry.cli import main; sys.exit(main())"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": shell,
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, text=True, check=True
    )
    return sorted(one.partition("\\")[0].strip().partition("\t")[0] for one in done.stdout.splitlines())


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_options_and_choices_are_completed(shell: str):
    """Completion works in the shells that people use."""

    def completed(line: str) -> set[str]:
        return {one.partition(":")[0].strip() for one in completions(line, shell=shell)}

    assert completed("speaker-registry ex") == {"export", "extract"}
    assert {"create", "list", "rotate", "revoke"} <= completed("speaker-registry keys ")
    assert {"--profile", "--force", "--wait"} <= completed("speaker-registry extract alice --")
    assert {"pending", "ready"} <= completed("speaker-registry list --state ")


@pytest.mark.processes
def test_files_are_completed_where_a_file_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Files are completed nowhere else, because no voice is called like a file that happens to lie in the
    folder.
    """
    (tmp_path / "wren.flac").touch()
    monkeypatch.chdir(tmp_path)
    assert completions("speaker-registry register alice w") == ["wren.flac"]
    assert completions("speaker-registry put alice@1 w") == ["wren.flac"]
    assert completions("speaker-registry import w") == ["wren.flac"]
    assert completions("speaker-registry register --batch w") == ["wren.flac"]
    assert completions("speaker-registry show w") == []


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(run: Run, shell: str, monkeypatch: pytest.MonkeyPatch):
    """The script is printed without a registry, because it is installed before there is one."""
    monkeypatch.delenv("SPEAKER_REGISTRY_URL")
    outcome = run("completion", shell)
    assert (outcome.status, outcome.err) == (0, "")
    assert "speaker-registry" in outcome.out
    assert "--url" not in run("completion", "--help").out
    program = shutil.which(shell)
    if program is not None:  # the shell itself can read it
        subprocess.run([program, "-n"], input=outcome.out, text=True, check=True, timeout=30)


@pytest.mark.processes
def test_bash_completes_by_its_script(run: Run, tmp_path: Path):
    """The script leads to the answer that an interactive bash would get."""
    (tmp_path / "speaker-registry").write_text(
        f"#!{sys.executable}\nimport sys\nfrom speaker_registry.cli import main\nsys.exit(main())\n"
    )
    (tmp_path / "speaker-registry").chmod(0o755)
    script = run("completion", "bash").out
    asked = """
COMP_WORDS=(speaker-registry can); COMP_CWORD=1; COMP_LINE="speaker-registry can"; COMP_POINT=${#COMP_LINE}
COMP_TYPE=9
function=$(complete -p speaker-registry | sed 's/.* -F \\([^ ]*\\).*/\\1/')
$function speaker-registry can speaker-registry
echo "found: ${COMPREPLY[*]}"
"""
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script + asked],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "found: cancel", done.stderr


CHILD = """
import functools, sys, httpx, speaker_registry
from speaker_registry.cli import main
from tests.unit.sdk.fake_registry import FakeRegistry
registry, client = FakeRegistry(), speaker_registry.RegistryClient
for number in range(int(sys.argv.pop(1))):
    registry.add_version(f"voice{number}-声")
speaker_registry.RegistryClient = functools.partial(client, transport=httpx.MockTransport(registry))
sys.exit(main(["--url", "http://x", *sys.argv[1:]]))
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [("1000", "list"), ("1", "list"), ("1", "fetch", "voice0-声", "--profile", ECAPA, "-o", "-")],
    ids=["more than a buffer", "less", "an artifact"],
)
def test_a_reader_that_has_seen_enough_is_no_error(words: tuple[str, ...]):
    """`speaker-registry list | head -1` says nothing on stderr."""
    command = [sys.executable, "-c", CHILD, *words]
    # Only a buffered stream has something left to complain about when Python ends.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert child.stdout
    assert child.stderr
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait() == 141


INTERRUPTED_AT_AN_IMPORT = """
import sys
class Interrupting:
    def find_spec(name, path=None, target=None):
        if name not in {"speaker_registry", "speaker_registry.cli"}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting)
from speaker_registry.cli import main
sys.exit(main(["list"]))
"""


@pytest.mark.processes
def test_an_interruption_while_the_command_is_loaded_ends_it_silently():
    """Loading takes a part of a second, in which a user may notice a mistyped command."""
    command = [sys.executable, "-S", "-c", INTERRUPTED_AT_AN_IMPORT]  # `site` would load modules before
    checkout = Path(speaker_registry.__file__).parents[1]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=checkout)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [("list",), ("list", "--json"), ("fetch", "voice0-声", "--profile", ECAPA, "-o", "-")],
    ids=["text", "json", "an artifact"],
)
def test_a_full_disk_under_standard_output_is_reported(words: tuple[str, ...]):
    """`speaker-registry list > voices.txt` says what is wrong, in one line."""
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", CHILD, "1", *words]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert "standard output: No space left on device" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.processes
def test_a_closed_standard_error_does_not_fail_a_command():
    """A supervisor may start a command without it. Then a warning must not get into the output either."""
    script = CHILD.replace('(f"voice{number}-声")', '(f"voice{number}-声", untrained=True)')
    command = [sys.executable, "-c", script, "1", "list"]
    usual = subprocess.run(command, capture_output=True, check=True)
    assert b"useless" in usual.stderr
    shell = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    ended = subprocess.run(shell, stdout=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stdout) == (0, usual.stdout)


@pytest.mark.processes
def test_a_closed_standard_output_is_no_place_for_an_artifact():
    command = [sys.executable, "-c", CHILD, "1", "fetch", "voice0-声", "--profile", ECAPA, "-o", "-"]
    shell = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
    ended = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "speaker-registry: standard output is closed; give a file with -o\n"


@pytest.mark.processes
def test_a_terminal_that_lacks_a_character_gets_an_escape():
    """An ASCII terminal must not turn a list into a traceback."""
    command = [sys.executable, "-c", CHILD, "1", "list"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"voice0-\\u58f0" in done.stdout


def test_two_profiles_are_both_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The table says where each stands."""
    registry = FakeRegistry((ECAPA, QWEN))
    registry.add_version("alice")
    real = speaker_registry.RegistryClient
    monkeypatch.setattr(
        speaker_registry, "RegistryClient", functools.partial(real, transport=httpx.MockTransport(registry))
    )
    assert main(["wait", "alice", "--url", URL]) == 0
    assert {ECAPA, QWEN} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(
    "words",
    [
        ("import", "{folder}", "--consent", "c"),
        ("export", "{folder}/x.tar"),
        ("sync", "{folder}/voices", "--format", "speaker-samples", "--profile", ECAPA),
        ("push", "http://127.0.0.1:1", "--profile", ECAPA),
    ],
    ids=lambda words: words[0],
)
def test_a_command_for_many_voices_says_why_it_waits(
    run: Run,
    registry: FakeRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    options: list[str],
):
    """It may wait for minutes, and a job in the night shows nothing else."""
    monkeypatch.setattr(progress, "_MAX_SILENT_SECONDS", 0.0)
    (tmp_path / "alice.wav").write_bytes(b"RIFF")
    if words[0] == "export":  # it asks for the namespace first
        registry.faults.append(httpx.Response(200, json=registry._quota()))
    registry.faults.append(error_answer(503, "unavailable", "busy", headers={"retry-after": "0.01"}))
    outcome = run(*(word.format(folder=tmp_path) for word in words), *options)
    text = "speaker-registry: waiting 1 s, as the registry asks: busy\n"
    document = '{"pause": {"seconds": 1, "code": "unavailable", "message": "busy"}}\n'
    assert outcome.err.startswith(document if options else text)


@pytest.mark.parametrize("command", ["import", "sync"])
def test_a_command_does_not_wait_for_the_end_of_maintenance(
    run: Run, registry: FakeRegistry, tmp_path: Path, command: str
):
    """It ends with the exit code for a registry that cannot answer now."""
    (tmp_path / "alice.wav").write_bytes(b"RIFF")
    registry.faults.append(httpx.Response(503, headers={"retry-after": "3600"}))
    more = ["--consent", "c"] if command == "import" else ["--format", "speaker-samples", "--profile", ECAPA]
    outcome = run(command, str(tmp_path), *more)
    assert outcome.status == 3
    assert "status 503 and no error of its own" in outcome.out + outcome.err
