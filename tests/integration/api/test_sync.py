"""Tests of `sync` against a whole registry: what it writes is read by vLLM-Omni's own code, and what is
deleted in the registry vanishes.
"""

import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from speaker_registry import RegistryClient, cli
from speaker_registry.cli.command import UNTRAINED
from speaker_registry.errors import CacheUnsupported, InvalidRequest, SpeakerRegistryError, Unavailable
from speaker_registry.syncing.folder import FileName
from speaker_registry.syncing.samples import SpeakerSamples
from speaker_registry.syncing.synchronization import Report, Synchronization
from speaker_registry.syncing.wanted import Wanted
from tests.integration.api.access import BOOTSTRAP, CLOSED, key
from tests.integration.api.conftest import Start
from tests.integration.api.moving import Run, runner
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, Led, Registry
from tests.queue_workers import wait_until
from tests.relay import Relay
from tests.vllm_omni_readers import LOGGER, readers

CUSTOM, SAMPLES = "custom-voice-dir", "speaker-samples"
TALKERS = {
    "qwen3_tts": "qwen3_tts_talker.Qwen3TTSTalkerForConditionalGeneration",
    "voxcpm2": "voxcpm2_talker.VoxCPM2TalkerForConditionalGeneration",
}
VOXCPM2_TENSORS = {
    name: np.random.default_rng(1).standard_normal((8, 4, 64)).astype(np.float32)
    for name in ("ref_audio_feat", "audio_feat")
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def skipped(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of vLLM-Omni's readers about what they skipped, which is all that they do about bad voices."""
    caplog.set_level(logging.WARNING, LOGGER)
    return caplog.messages


def sync(registry: Registry, path: Path, profile: str = PROFILE, form: str = CUSTOM) -> Report:
    with RegistryClient(registry.url, retries=0) as client:
        return Synchronization(client, path, profile=profile, form=form).run()


def states(report: Report) -> dict[str, str]:
    return {f"{one.name}@{one.version}": one.state for one in report.outcomes}


def loaded_by_a_worker(path: Path, model_type: str, **config: Any) -> dict[tuple[str, str, int], Any]:
    """Return the speaker cache that a worker of vLLM-Omni has filled from the folder."""
    module, _, talker = TALKERS[model_type].partition(".")
    cache = readers().speaker_cache.SpeakerEmbeddingCache()
    config["custom_voice_dir"] = str(path)
    worker = SimpleNamespace(config=SimpleNamespace(**config), _speaker_cache=cache)
    getattr(getattr(readers(), module), talker)._load_custom_voice_profiles(worker)
    return dict(cache._cache)


def test_a_folder_of_noise_is_called_so(
    start: Start, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
):
    """A server would speak with it. A folder of clips holds what people said, whatever the weights."""
    registry = start(profiles=(PROFILE,))
    registry.worker.announce("sha256:" + "9" * 64, untrained=True)
    registry.ready("alice")

    def warned(form: str) -> bool:
        words = ["sync", "--format", form, "--profile", PROFILE, str(tmp_path / form)]
        assert cli.main(["--url", registry.url, *words]) == 0
        return UNTRAINED in capsys.readouterr().err

    assert [warned(CUSTOM), warned(CUSTOM), warned(SAMPLES)] == [True, True, False]
    outcome = run(registry, "sync", "--format", CUSTOM, "--profile", PROFILE, tmp_path / CUSTOM)
    assert [one["untrained"] for one in outcome.document["voices"]] == [True]
    outcome = run(registry, "sync", "--format", SAMPLES, "--profile", PROFILE, tmp_path / SAMPLES)
    assert "untrained" not in outcome.document["voices"][0]


def listed_by_the_server(path: Path, model_type: str, validate: Any) -> dict[str, dict[str, Any]]:
    """Return the voices that the API process of vLLM-Omni offers from the folder."""
    model_config = SimpleNamespace(hf_config=SimpleNamespace(custom_voice_dir=str(path)))
    found: dict[str, dict[str, Any]] = readers().capabilities.load_precomputed_speakers(
        SimpleNamespace(model_config=model_config), expected_model_type=model_type, validate_profile=validate
    )
    return found


def test_vllm_omni_reads_voices_of_qwen3_tts(start: Start, tmp_path: Path, skipped: list[str]):
    """vLLM-Omni's own functions accept every voice, in its mode, with the tensors of the registry."""
    registry, path = start(), tmp_path / "voices"
    registry.ready("Alice", ref_text="Hi.")
    registry.ready("alice", clip=OTHER_CLIP, ref_text="Ho.")
    registry.ready("Émile 名")
    registry.upload("eve", clip=None, speaker_embedding=EMBEDDING)
    assert states(sync(registry, path)) == dict.fromkeys(["alice@2", "eve@1", "Émile 名@1"], "written")

    theirs = readers().speaker_cache
    profiles = theirs.iter_custom_voice_profiles(path, expected_model_type="qwen3_tts")
    assert [one["name"] for one in profiles] == ["alice@2", "eve@1", "Émile 名@1"]

    def validate(profile: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str | None:
        fault: str | None = theirs.validate_qwen3_tts_profile(profile, tensors, expected_embedding_dim=1024)
        return fault

    with RegistryClient(registry.url) as client:
        for profile in profiles:
            tensors = theirs.load_validated_profile_tensors(
                profile, expected_model_type="qwen3_tts", validate_profile=validate
            )
            expected = client.fetch(profile["name"], PROFILE).tensors
            assert tensors.keys() == expected.keys()
            for name, tensor in tensors.items():
                assert np.array_equal(tensor.numpy(), expected[name])
    encoder = SimpleNamespace(enc_dim=1024)
    cached = loaded_by_a_worker(path, "qwen3_tts", speaker_encoder_config=encoder)
    assert cached.keys() == {
        ("qwen3_tts_icl", "alice@2", 0),
        ("qwen3_tts_xvec", "eve@1", 0),
        ("qwen3_tts_xvec", "émile 名@1", 0),
    }
    assert cached["qwen3_tts_icl", "alice@2", 0]["ref_text"] == "Ho."
    assert cached["qwen3_tts_icl", "alice@2", 0]["ref_code"].shape == (20, 16)
    offered = listed_by_the_server(path, "qwen3_tts", validate)
    assert {name: one["mode"] for name, one in offered.items()} == {
        "alice@2": "icl",
        "eve@1": "xvec",
        "émile 名@1": "xvec",
    }
    assert skipped == []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:
    """Return a function that starts the storage of voices of vLLM-Omni's API process on a folder."""

    def start(path: Path) -> Any:
        monkeypatch.setenv("SPEAKER_SAMPLES_DIR", str(path))
        process = object.__new__(readers().serving_speech.OmniOpenAIServingSpeech)
        process._init_speaker_storage()
        return process

    return start


def test_vllm_omni_restores_sampled_voices(
    start: Start, tmp_path: Path, skipped: list[str], server: Callable[[Path], Any]
):
    """vLLM-Omni restores each voice as one that was uploaded, with the registry's texts and time."""
    registry, path = start(), tmp_path / "voices"
    registry.ready("Alice", ref_text="Hi.", speaker_description="warm")
    first = states(sync(registry, path, form=SAMPLES))
    alice = registry.ready("alice", clip=OTHER_CLIP, ref_text="Ho.")
    registry.upload("Émile 名")
    registry.upload("eve", clip=None, speaker_embedding=EMBEDDING)
    assert first == {"Alice@1": "written"}
    assert set(states(sync(registry, path, form=SAMPLES)).values()) == {"written"}

    process = server(path)
    assert process.uploaded_speakers.keys() == {"alice", "eve", "émile 名"}
    restored = dict(process.uploaded_speakers["alice"])
    file = Path(restored.pop("file_path"))
    assert restored == {
        "name": "alice",
        "voice_name_lower": "alice",
        "consent": "cons_1",
        "created_at": alice["created_at"],
        "mime_type": "audio/flac",
        "file_size": len(OTHER_CLIP),
        "sample_rate": 16000,
        "embedding_source": "audio",
        "ref_text": "Ho.",
    }
    assert file.parent == path
    assert process._voice_created_at("alice") == alice["created_at"] > 0
    with RegistryClient(registry.url) as client:
        for name in ("alice", "émile 名"):
            samples, rate = process._load_uploaded_audio(name)
            expected = client.samples(name)
            assert (samples.tobytes(), rate) == (expected.samples.tobytes(), expected.sample_rate)
        eve = client.fetch("eve", PROFILE).tensors["speaker_embedding"]
    assert process._get_uploaded_audio_data("alice").startswith("data:audio/wav;base64,UklGR")
    assert process._get_uploaded_speaker_embedding("eve") == eve.tolist()
    assert process.uploaded_speakers["eve"]["embedding_dim"] == 1024
    assert skipped == []


def test_vllm_omni_reads_the_intact_file_of_a_voice_whose_file_was_damaged(
    start: Start, tmp_path: Path, server: Callable[[Path], Any]
):
    """The file that is made anew can have another name, and vLLM-Omni takes the one that sorts last."""
    registry, path = start(), tmp_path / "voices"
    registry.upload("alice")
    sync(registry, path, form=SAMPLES)
    [file] = path.glob("*.safetensors")
    voice_and_time = file.name.rpartition("-")[0]
    damaged = file.rename(path / f"{voice_and_time}-{'f' * 64}.safetensors")
    assert states(sync(registry, path, form=SAMPLES)) == {"alice@1": "written"}
    [intact] = path.glob("*.safetensors")
    assert intact != damaged
    assert server(path).uploaded_speakers["alice"]["file_path"] == str(intact)


def test_a_voice_without_a_clip_is_left_out_where_servers_take_only_clips(
    start: Start, tmp_path: Path, server: Callable[[Path], Any]
):
    """vLLM-Omni would refuse every request for it."""
    registry, path = start(), tmp_path / "voices"
    registry.upload("alice")
    registry.upload("eve", clip=None, speaker_embedding=EMBEDDING)
    with RegistryClient(registry.url) as client:
        eve = client.get("eve")
        report = Synchronization(client, path, profile="omnivoice", form=SAMPLES).run()
        form = SpeakerSamples(client, "omnivoice", "omnivoice")
        [wanted] = form.wanted([eve])
        with pytest.raises(CacheUnsupported, match="takes embeddings only for ming_tts and qwen3_tts"):
            form.fetch(wanted)
    assert states(report) == {"alice@1": "written"}
    assert server(path).uploaded_speakers.keys() == {"alice"}


def test_vllm_omni_reads_voices_of_voxcpm2(start: Start, tmp_path: Path, skipped: list[str]):
    """A voice with a transcript is continued, and one without is a reference."""
    registry, path = start(profiles="voxcpm2"), tmp_path / "voices"
    for name, fields in {"alice": {"ref_text": "Hi."}, "bob": {}}.items():
        registry.upload(name, **fields)
        [attempt] = registry.worker.take_all(name)
        left_out = set() if fields else {"audio_feat"}
        tensors = {name: VOXCPM2_TENSORS[name] for name in VOXCPM2_TENSORS.keys() - left_out}
        assert registry.worker.publish(attempt, tensors)
    sync(registry, path, "voxcpm2")
    cached = loaded_by_a_worker(path, "voxcpm2")
    alice, bob = cached["voxcpm2", "alice@1", 0], cached["voxcpm2", "bob@1", 0]
    assert (alice["mode"], alice["prompt_text"]) == ("ref_continuation", "Hi.")
    assert (bob["mode"], bob.keys()) == ("reference", {"mode", "ref_audio_feat"})
    assert np.array_equal(alice["audio_feat"].numpy(), VOXCPM2_TENSORS["audio_feat"])
    validate = readers().speaker_cache.validate_voxcpm2_profile
    assert listed_by_the_server(path, "voxcpm2", validate).keys() == {"alice@1", "bob@1"}
    assert skipped == []
    assert readers().speaker_cache.iter_custom_voice_profiles(path, expected_model_type="qwen3_tts") == []


def voices_of(path: Path) -> list[str]:
    """Return the voices that a server that starts now would have."""
    return [one["name"] for one in readers().speaker_cache.iter_custom_voice_profiles(path)]


def test_a_second_sync_fetches_only_what_is_new(start: Start, tmp_path: Path):
    """Nothing is fetched a second time, so that a fleet of servers can sync as often as it likes."""
    registry, path = start(), tmp_path / "voices"
    registry.ready("alice")
    registry.ready("bob")
    assert states(sync(registry, path)) == {"alice@1": "written", "bob@1": "written"}
    before = {one: one.stat().st_mtime_ns for one in path.iterdir()}
    again = sync(registry, path)
    assert (states(again), again.is_changed) == ({"alice@1": "unchanged", "bob@1": "unchanged"}, False)
    assert {one: one.stat().st_mtime_ns for one in path.iterdir()} == before
    registry.ready("alice", clip=OTHER_CLIP)
    assert states(sync(registry, path)) == {"alice@2": "written", "bob@1": "unchanged"}
    assert voices_of(path) == ["alice@2", "bob@1"]


def test_deleted_voices_vanish_also_if_their_name_was_taken_again(start: Start, tmp_path: Path):
    """Not a byte of a deleted voice is left after the next sync, whoever has its name now."""
    registry, path = start(), tmp_path / "voices"
    for name in ("alice", "bob"):
        registry.ready(name)
        registry.ready(name, clip=OTHER_CLIP)
    sync(registry, path)
    before = {one.name for one in path.iterdir() if FileName.parse(one.name)}
    with RegistryClient(registry.url) as client:
        client.delete("alice")
        client.delete("bob")
    registry.ready("alice", clip=CLIP)
    report = sync(registry, path)
    assert (states(report), report.removed) == ({"alice@3": "written"}, 2)
    assert not before & {one.name for one in path.iterdir()}
    assert voices_of(path) == ["alice@3"]


class DeletingClient(RegistryClient):
    """A client that deletes all voices right before one of its calls."""

    before = ""

    def resolve(self, *arguments: Any) -> Any:
        self._delete_before("resolve")
        return super().resolve(*arguments)

    def download(self, *arguments: Any, **options: Any) -> Any:
        self._delete_before("download")
        return super().download(*arguments, **options)

    def _delete_before(self, call: str) -> None:
        if call == self.before:
            for voice in self.list():
                self.delete(voice.name)


@pytest.mark.parametrize("call", ["resolve", "download"])
def test_a_voice_that_is_deleted_during_a_sync_vanishes(start: Start, tmp_path: Path, call: str):
    """A voice that is deleted during a sync is no error, and nothing of it stays in the folder."""
    registry, path = start(), tmp_path / "voices"
    registry.ready("alice")
    sync(registry, path)
    registry.ready("alice", clip=OTHER_CLIP)
    with DeletingClient(registry.url) as client:
        client.before = call
        report = Synchronization(client, path, profile=PROFILE, form=CUSTOM).run()
    assert report == Report(outcomes=(), removed=1)
    assert voices_of(path) == []


def test_a_voice_without_a_ready_artifact_keeps_the_file_it_has(start: Start, tmp_path: Path):
    """A new encoder must not take all voices from the servers that start before its artifacts are ready. The
    file of the former one is served until then.
    """
    registry, path = start(), tmp_path / "voices"
    registry.ready("alice")
    sync(registry, path)
    registry.upload("bob")
    registry.worker.announce("sha256:" + "2" * 64)
    report = sync(registry, path)
    assert states(report) == {"alice@1": "unchanged", "bob@1": "missing"}
    assert [bool(outcome.reason) for outcome in report.outcomes] == [False, True]
    assert voices_of(path) == ["alice@1"]
    registry.client.post("/v1/voices/alice/versions/1/extractions", json={"profiles": [PROFILE]})
    registry.worker.finish_all()  # what is queued for the former encoder is superseded
    registry.repair("bob")
    registry.worker.finish_all()
    assert states(sync(registry, path)) == {"alice@1": "written", "bob@1": "written"}
    assert voices_of(path) == ["alice@1", "bob@1"]


def test_a_version_that_was_rolled_back_is_not_kept_in_place_of_the_one_that_has_no_artifact_now(
    start: Start, tmp_path: Path
):
    """The bytes of the older version are lost and not computed again yet, but the folder has its file."""
    registry, path = start(kept_bytes=0), tmp_path / "voices"
    registry.ready("alice")
    [file] = registry.folder.rglob("*.safetensors")
    sync(registry, path)
    registry.ready("alice", clip=OTHER_CLIP)
    sync(registry, path)
    assert voices_of(path) == ["alice@2"]
    assert registry.client.put("/v1/voices/alice/aliases/default", json={"version": 1}).status_code == 200
    file.unlink()
    assert registry.client.get(f"/v1/voices/alice/versions/1/artifacts/{PROFILE}/file").status_code == 202
    assert states(sync(registry, path)) == {"alice@1": "kept"}
    assert voices_of(path) == ["alice@1"]


def test_a_version_that_was_deleted_is_not_kept_in_place_of_one_without_an_artifact(
    start: Start, tmp_path: Path
):
    """The folder has a file of the deleted version only, and the older one is not computed again yet."""
    registry, path = start(kept_bytes=0), tmp_path / "voices"
    registry.ready("alice")
    [file] = registry.folder.rglob("*.safetensors")
    registry.ready("alice", clip=OTHER_CLIP)
    sync(registry, path)
    assert voices_of(path) == ["alice@2"]
    assert registry.client.put("/v1/voices/alice/aliases/default", json={"version": 1}).status_code == 200
    deleted = registry.client.delete("/v1/voices/alice/versions/2")
    assert deleted.status_code == 204, deleted.text
    file.unlink()
    assert registry.client.get(f"/v1/voices/alice/versions/1/artifacts/{PROFILE}/file").status_code == 202
    assert states(sync(registry, path)) == {"alice@1": "missing"}
    assert voices_of(path) == []


def test_a_voice_whose_bytes_are_lost_keeps_its_file_and_harms_no_other(start: Start, tmp_path: Path):
    """The registry answers 5xx for one voice, and the others are written all the same."""
    registry = start(kept_bytes=0)
    registry.upload("eve", clip=None, speaker_embedding=EMBEDDING)
    registry.ready("alice")
    [lost] = [one for one in registry.folder.rglob("*.safetensors") if "/eve/" in str(one)]
    lost.unlink()
    report = sync(registry, tmp_path / "voices")
    assert states(report) == {"alice@1": "written", "eve@1": "missing"}
    assert voices_of(tmp_path / "voices") == ["alice@1"]


def test_a_voice_with_a_creation_time_that_cannot_be_meant_harms_no_other(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No file can be named after it."""
    registry = start()
    registry.ready("alice")
    registry.ready("bob")
    wanted = SpeakerSamples.wanted

    def strange(self: SpeakerSamples, voices: Any) -> Iterator[Wanted]:
        for one in wanted(self, voices):
            yield replace(one, created_at=10**12) if one.voice.name == "alice" else one

    monkeypatch.setattr(SpeakerSamples, "wanted", strange)
    report = sync(registry, tmp_path / "voices", form=SAMPLES)
    assert states(report) == {"alice@1": "missing", "bob@1": "written"}
    assert "created at 1000000000000; accepted" in str(report.outcomes[0].reason)


def test_the_command_says_what_it_did(start: Start, run: Run, tmp_path: Path):
    """The command ends with 0 if the folder is whole, and names the voices that it lacks."""
    registry, path = start(), tmp_path / "voices"
    registry.ready("alice")
    registry.upload("bob")
    outcome = run(registry, "sync", "--format", CUSTOM, "--profile", PROFILE, path)
    assert outcome.status == 0
    counts = {name: outcome.document[name] for name in ("written", "unchanged", "kept", "missing", "removed")}
    assert counts == {"written": 1, "unchanged": 0, "kept": 0, "missing": 1, "removed": 0}
    assert [(one["name"], one["reason"]) for one in outcome.document["voices"]] == [
        ("alice", None),
        ("bob", outcome.document["voices"][1]["reason"]),
    ]
    assert voices_of(path) == ["alice@1"]


def test_a_registry_that_fails_at_one_voice_keeps_no_other_one_out(
    start: Start, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A failure (500) is no answer, and a cron job that ended with 0 would hide it."""
    registry, path = start(), tmp_path / "voices"
    registry.ready("alice")
    registry.ready("bob")
    download, failing = RegistryClient.download, list[str]()

    def fail_at_the_first(client: RegistryClient, reference: str, *arguments: Any, **options: Any) -> Any:
        failing.extend([] if failing else [reference])
        if reference in failing:
            raise SpeakerRegistryError("An internal error occurred.")
        return download(client, reference, *arguments, **options)

    monkeypatch.setattr(RegistryClient, "download", fail_at_the_first)
    outcome = run(registry, "sync", "--format", CUSTOM, "--profile", PROFILE, path)
    assert (outcome.status, outcome.document["missing"], outcome.document["written"]) == (3, 1, 1)


def refused(registry: Registry, run: Run, path: Path, profile: str) -> tuple[int, str, str]:
    path.mkdir()
    (path / "precious").write_text("theirs")
    outcome = run(registry, "sync", "--format", CUSTOM, "--profile", profile, path)
    error = outcome.document["error"]
    assert [one.name for one in path.iterdir()] == ["precious"]
    return outcome.status, error["code"], error["message"]


@pytest.mark.parametrize(
    ("profile", "status", "code", "message"),
    [
        (
            PROFILE,
            1,
            "invalid_request",
            "files that are not from a sync, such as 'precious'; accepted: ",
        ),
        ("nope", 5, "profile_unknown", "there is no profile 'nope'; accepted: audio8, "),
        ("omnivoice", 1, "invalid_request", "accepted: profiles of the model types qwen3_tts, voxcpm2"),
    ],
)
def test_what_cannot_be_synced_is_refused_and_nothing_is_touched(
    registry: Registry, run: Run, tmp_path: Path, profile: str, status: int, code: str, message: str
):
    """A folder with files of others, a profile that nobody reads so, and one that does not exist."""
    found = refused(registry, run, tmp_path / "voices", profile)
    assert found[:2] == (status, code)
    assert message in found[2]


def test_a_key_without_the_permission_ends_the_sync(
    start: Start, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A key with the scope `engine` suffices for artifacts, and with any other the folder stays as it was."""
    registry, path = start(access=CLOSED), tmp_path / "voices"
    monkeypatch.setenv("SPEAKER_REGISTRY_API_KEY", str(BOOTSTRAP))
    with RegistryClient(registry.url) as client:
        client.register("alice", CLIP, consent="c")
    registry.worker.finish_all("alice")
    engine, reader = key(registry, "engine"), key(registry, "voices:read")

    def status(form: str, given: str) -> int:
        monkeypatch.setenv("SPEAKER_REGISTRY_API_KEY", given)
        return run(registry, "sync", "--format", form, "--profile", PROFILE, path / form).status

    for given, expected in ((engine, 0), (reader, 4), ("sreg_x", 4)):
        assert status(CUSTOM, given) == expected
        assert voices_of(path / CUSTOM) == ["alice@1"]
    assert status(SAMPLES, engine) == 4, "clips need a scope of their own"
    assert status(SAMPLES, key(registry, "engine", "audio:read")) == 0


def test_a_registry_that_is_away_leaves_the_folder_as_it_was(start: Start, tmp_path: Path):
    """A server that starts meanwhile has the voices of before."""
    registry, path = start(), tmp_path / "voices"
    registry.ready("alice")
    sync(registry, path)
    before = {one.name: one.read_bytes() for one in path.iterdir()}
    with RegistryClient("http://127.0.0.1:1", retries=0) as client, pytest.raises(Unavailable):
        Synchronization(client, path, profile=PROFILE, form=CUSTOM).run()
    assert {one.name: one.read_bytes() for one in path.iterdir()} == before


def test_another_registry_at_the_same_address_takes_nothing_away(start: Start, tmp_path: Path):
    """A wrong DNS entry must not replace the voices of a folder, neither under a sidecar that goes on nor
    under a job that is started again.
    """
    registry, other, path = start(), start(), tmp_path / "voices"
    registry.ready("alice")
    other.ready("mallory")
    transport = Led(registry)

    def synchronization(client: RegistryClient) -> Synchronization:
        return Synchronization(client, path, profile=PROFILE, form=CUSTOM)

    with RegistryClient("http://registry.test", transport=transport, retries=0) as client:
        sidecar = synchronization(client)
        sidecar.run()
        transport.registry = other
        with pytest.raises(Unavailable, match="another registry answered"):
            sidecar.run()
        with pytest.raises(InvalidRequest, match="was made for the registry_id"):
            synchronization(client).run()
        assert voices_of(path) == ["alice@1"]
        transport.registry = registry
        assert states(sidecar.run()) == states(synchronization(client).run()) == {"alice@1": "unchanged"}


@contextmanager
def watching(url: str, path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run `sync --watch` as a sidecar does. It is killed at the end if it still runs."""
    program = Path(sys.executable).with_name("speaker-registry")
    command = [program, "--url", url, "--json", "sync", "--format", CUSTOM, "--profile", PROFILE, path]
    errors = path.with_suffix(".errors").open("w")
    with errors, subprocess.Popen([*command, "--watch", *words], stderr=errors, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_watched_folder_follows_the_registry_also_when_it_was_away(start: Start, tmp_path: Path):
    """A sidecar waits for a registry that is away, goes on with it, and ends when it is told to."""
    registry, path = start(), tmp_path / "voices"
    registry.ready("alice")
    with Relay(registry.port) as relay, watching(relay.url, path, "--interval", "1") as process:
        complaints = path.with_suffix(".errors")
        wait_until(lambda: "trying again every 1 s" in complaints.read_text())
        assert not path.exists()
        relay.open()
        wait_until(lambda: voices_of(path) == ["alice@1"])
        registry.ready("bob")
        wait_until(lambda: voices_of(path) == ["alice@1", "bob@1"])
        relay.close()
        wait_until(lambda: complaints.read_text().count("trying again every 1 s") == 2)
        registry.client.delete("/v1/voices/alice")
        assert voices_of(path) == ["alice@1", "bob@1"]
        relay.open()
        wait_until(lambda: voices_of(path) == ["bob@1"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_watch_that_cannot_go_on_ends(start: Start, tmp_path: Path):
    """Whoever runs the process sees by its exit code that files of others are in the way."""
    registry, path = start(), tmp_path / "voices"
    with watching(registry.url, path, "--interval", "1") as process:
        wait_until((path / "custom_voice_manifest.json").exists)
        (path / "alice_c1_1.safetensors").write_bytes(b"an upload of the server's own")
        assert process.wait(60) == 1
    assert "files that are not from a sync" in path.with_suffix(".errors").read_text()


@pytest.mark.parametrize(
    "words", [["--interval", "5"], ["--watch", "--interval", "0"], ["--watch", "--interval", "x"]]
)
def test_an_interval_is_for_watching_and_at_least_a_second(
    registry: Registry, run: Run, tmp_path: Path, words: list[str]
):
    outcome = run(registry, "sync", "--format", CUSTOM, "--profile", PROFILE, tmp_path / "v", *words)
    assert (outcome.status, outcome.document["error"]["code"]) == (2, "usage")
    assert not (tmp_path / "v").exists()
