"""Tests of the plugin of vLLM-Omni against a whole registry, with vLLM-Omni's own loader of plugins, speaker
cache and storage of uploaded voices.
"""

import asyncio
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from safetensors import safe_open

from speaker_registry import RegistryClient
from speaker_registry.errors import ClipDamaged, Unavailable, VersionNotFound
from speaker_registry.manifests import ManifestEntry
from speaker_registry.vllm_omni import plugin as plugin_module
from speaker_registry.vllm_omni import serving, uploads
from speaker_registry.vllm_omni.plugin import Plugin, PluginSettings, activate
from speaker_registry.vllm_omni.serving import Loop
from speaker_registry.vllm_omni.uploads import UploadedVoices
from tests.integration.api.conftest import Start
from tests.integration.api.registry import EMBEDDING, OTHER_CLIP, PROFILE, Led
from tests.queue_workers import wait_until
from tests.relay import Relay
from tests.unit.sdk.test_following import entry
from tests.vllm_omni_readers import readers

CACHE = "vllm_omni.utils.speaker_cache"
SETTINGS = PluginSettings(profile=PROFILE, poll_seconds=0.1)


class Process:
    """A process of a server: the plugin, and vLLM-Omni's cache and storage of voices."""

    def __init__(
        self,
        url: str,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        monkeypatch.setenv("SPEAKER_SAMPLES_DIR", str(folder))
        self.cache = readers().speaker_cache.SpeakerEmbeddingCache()
        client = RegistryClient(url, retries=0, timeout=5, cache=None, transport=transport)
        self.plugin = Plugin(client, SETTINGS, self.cache)
        self.server = object.__new__(readers().serving_speech.OmniOpenAIServingSpeech)
        self.server._init_speaker_storage()
        self.voices = self.plugin.add_server(self.server, Loop())

    def look(self) -> None:
        self.plugin.look()

    def ask(self, voice: str) -> SimpleNamespace:
        """Have a request resolved as adapters without built-in voices do."""
        request = SimpleNamespace(voice=voice, ref_audio=None, ref_text=None)
        self.server._tts_model_type = "fish_tts"
        self.voices.pin(request)
        request.fault = self.server._apply_uploaded_speaker(request)
        request.created_at = self.server._voice_created_at(request.voice)
        return request


Make = Callable[..., Process]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(url: str, transport: httpx.BaseTransport | None = None) -> Process:
        return Process(url, tmp_path / "samples", monkeypatch, transport)

    return make


def test_a_registered_voice_is_offered_and_cached(start: Start, process: Make):
    """A server offers a voice, with its transcript, and finds its tensors, without a restart."""
    registry = start()
    one = process(registry.url)
    one.look()
    assert one.server.uploaded_speakers == {}
    made = registry.ready("Alice", ref_text="Hi.")
    one.look()
    request = one.ask("ALICE")
    assert (request.voice, request.ref_text, request.fault) == ("alice@1", "Hi.", None)
    assert request.ref_audio.startswith("data:audio/wav;base64,UklGR")
    assert request.created_at == made["created_at"]
    key = one.cache.make_cache_key(request.voice, "qwen3_tts_icl", request.created_at)
    with RegistryClient(registry.url) as client:
        expected = client.fetch("alice", PROFILE).tensors
    assert (one.cache.get(key)["ref_code"].numpy() == expected["ref_code"]).all()
    assert one.cache.get(key)["ref_text"] == "Hi."
    assert {"alice", "alice@1"} <= one.server.uploaded_speakers.keys()


def test_a_request_keeps_its_version_while_another_takes_its_place(start: Start, process: Make):
    """A request that has begun with one clip must not meet the tensors of another one."""
    registry = start()
    one = process(registry.url)
    registry.ready("alice", ref_text="Hi.")
    one.look()
    begun = one.ask("alice")
    registry.ready("alice", clip=OTHER_CLIP, ref_text="Ho.")
    wait_until(lambda: registry.client.get("/v1/voices/alice").json()["version"] == 2)
    wait_until(lambda: (one.look(), one.ask("alice").voice == "alice@2")[1])
    assert (one.server._voice_created_at(begun.voice), begun.ref_text) == (begun.created_at, "Hi.")
    later = one.ask("alice")
    assert (later.voice, later.ref_text) == ("alice@2", "Ho.")
    assert later.created_at > begun.created_at
    assert later.ref_audio != begun.ref_audio


def test_a_replaced_version_leaves_after_its_grace_period(
    start: Start, process: Make, monkeypatch: pytest.MonkeyPatch
):
    registry = start()
    monkeypatch.setattr(uploads, "GRACE_SECONDS", 0.0)
    one = process(registry.url)
    registry.ready("alice")
    one.look()
    [file] = one.server.uploaded_speakers_dir.iterdir()
    registry.ready("alice", clip=OTHER_CLIP)
    wait_until(lambda: (one.look(), "alice@1" not in one.server.uploaded_speakers)[1])
    assert one.server.uploaded_speakers.keys() == {"alice", "alice@2"}
    assert not file.exists()


def test_a_deleted_voice_is_gone_from_the_server(start: Start, process: Make):
    """Neither the clip nor the tensors of a person stay behind."""
    registry = start()
    one = process(registry.url)
    registry.ready("alice")
    registry.ready("bob")
    one.look()
    registry.client.delete("/v1/voices/alice")
    one.look()
    assert one.server.uploaded_speakers.keys() == {"bob", "bob@1"}
    assert "Unknown voice 'alice'" in one.ask("alice").fault
    assert {key[1] for key in one.cache._cache} == {"bob", "bob@1"}
    assert len(list(one.server.uploaded_speakers_dir.iterdir())) == 1


class Interrupting(httpx.HTTPTransport):
    """Calls a function before the second artifact is fetched."""

    def __init__(self, interrupt: Callable[[], object]) -> None:
        super().__init__()
        self._interrupt, self._fetched = interrupt, 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if "/artifacts/" in request.url.path:
            self._fetched += 1
            if self._fetched == 2:
                self._interrupt()
        return super().handle_request(request)


def test_a_deletion_does_not_wait_until_all_others_are_fetched(start: Start, process: Make):
    registry = start()
    names = [f"voice-{number}" for number in range(4)]
    for name in names:
        registry.ready(name)

    def delete_one() -> None:
        registry.client.delete(f"/v1/voices/{names[0]}")
        time.sleep(2 * SETTINGS.poll_seconds)

    one = process(registry.url, Interrupting(delete_one))
    seen: list[set[str]] = []
    one.server._speaker_metadata_from_header = lambda *given: (
        seen.append(set(one.server.uploaded_speakers)),
        type(one.server)._speaker_metadata_from_header(*given),
    )[1]
    one.look()
    assert names[0] in seen[1]
    assert names[0] not in seen[2]
    assert one.server.uploaded_speakers.keys() == {*names[1:], *(f"{name}@1" for name in names[1:])}


class WithoutArtifacts(httpx.HTTPTransport):
    """A registry that answers everything but the files of artifacts while `is_away` is true."""

    is_away = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_away and "/artifacts/" in request.url.path:
            return httpx.Response(503)
        return super().handle_request(request)


def test_a_deleted_voice_is_gone_while_another_one_cannot_be_fetched(start: Start, process: Make):
    registry, transport = start(), WithoutArtifacts()
    one = process(registry.url, transport)
    registry.ready("alice")
    one.look()
    transport.is_away = True
    registry.client.delete("/v1/voices/alice")
    registry.ready("bob")
    one.look()
    assert one.server.uploaded_speakers.keys() == {"bob", "bob@1"}
    transport.is_away = False
    one.look()
    assert one.server.uploaded_speakers.keys() == {"bob", "bob@1"}


def test_a_name_that_was_registered_anew_keeps_nothing_of_the_former_voice(start: Start, process: Make):
    """A voice may be deleted and registered again between two looks."""
    registry = start()
    one = process(registry.url)
    registry.ready("alice")
    one.look()
    registry.client.delete("/v1/voices/alice")
    registry.ready("alice", clip=OTHER_CLIP)
    one.look()
    assert one.server.uploaded_speakers.keys() == {"alice", "alice@2"}
    assert {key[1] for key in one.cache._cache} == {"alice", "alice@2"}
    assert len(list(one.server.uploaded_speakers_dir.iterdir())) == 1


def test_a_file_that_another_process_has_erased_is_written_again(start: Start, process: Make):
    """The API processes of a server share a folder, and one of them may be behind the others."""
    registry = start()
    one = process(registry.url)
    registry.ready("alice")
    one.look()
    [file] = one.server.uploaded_speakers_dir.iterdir()
    file.unlink()
    one.look()
    assert file.exists()
    assert one.ask("alice").fault is None


def test_a_voice_of_the_server_is_left_alone(start: Start, process: Make):
    """Whoever uploaded a voice to the server goes on to hear it."""
    registry = start()
    one = process(registry.url)
    own = {"name": "alice", "created_at": 7, "embedding_source": "audio", "file_path": "/nowhere"}
    one.server.uploaded_speakers["alice"] = own
    registry.ready("alice")
    one.look()
    assert one.server.uploaded_speakers["alice"] is own
    assert one.ask("alice").voice == "alice"
    registry.client.delete("/v1/voices/alice")
    one.look()
    assert one.server.uploaded_speakers == {"alice": own}


def own_upload(one: Process, name: str) -> dict[str, Any]:
    """Put a voice into the server as vLLM-Omni does with an upload, which takes the place of another one."""
    own = {"name": name, "created_at": 7, "embedding_source": "audio", "file_path": "/nowhere"}
    if before := one.server.uploaded_speakers.get(name):
        Path(before["file_path"]).unlink()
    one.server.uploaded_speakers[name] = own
    return own


def test_a_later_upload_to_the_server_hides_a_voice_of_the_registry(start: Start, process: Make):
    registry = start()
    one = process(registry.url)
    registry.ready("alice")
    one.look()
    own = own_upload(one, "alice")
    assert one.ask("alice").voice == "alice"
    one.look()
    assert one.server.uploaded_speakers["alice"] is own
    assert one.ask("alice").voice == "alice"
    assert one.ask("alice@1").fault is None


@pytest.mark.parametrize("first", [True, False])
def test_an_upload_named_like_a_version_is_not_taken_for_it(start: Start, process: Make, *, first: bool):
    """A request for a person's voice must never get the clip of another one."""
    registry = start()
    one = process(registry.url)
    if first:
        own = own_upload(one, "alice@1")
    registry.ready("alice")
    one.look()
    if not first:
        own = own_upload(one, "alice@1")
    one.look()
    request = one.ask("alice")
    assert (request.voice, request.fault) == ("alice", None)
    assert one.server.uploaded_speakers["alice@1"] is own
    registry.client.delete("/v1/voices/alice")
    one.look()
    assert one.server.uploaded_speakers == {"alice@1": own}


def test_inline_audio_is_not_replaced(start: Start, process: Make):
    """vLLM-Omni's rule: a clip in the request beats the name."""
    registry = start()
    one = process(registry.url)
    registry.ready("alice")
    one.look()
    request = SimpleNamespace(voice="alice", ref_audio="data:audio/wav;base64,AAAA")
    one.voices.pin(request)
    assert request.voice == "alice"


def test_an_embedding_is_offered_to_qwen3_tts(start: Start, process: Make):
    registry = start()
    one = process(registry.url)
    registry.upload("eve", clip=None, speaker_embedding=EMBEDDING)
    one.look()
    assert one.server._get_uploaded_speaker_embedding("eve@1") == [0.25] * 1024


def test_without_the_registry_the_server_serves_what_it_had(start: Start, process: Make, tmp_path: Path):
    """A restart of a server must not depend on the registry."""
    registry = start()
    relay = Relay(registry.port)
    relay.open()
    before = process(relay.url)
    registry.ready("alice", ref_text="Hi.")
    before.look()
    relay.close()
    before.look()
    assert before.ask("alice").voice == "alice@1"
    after = process(relay.url)
    after.look()
    request = after.ask("alice")
    assert (request.voice, request.ref_text, request.fault) == ("alice@1", "Hi.", None)
    registry.client.delete("/v1/voices/alice")
    with relay:
        relay.open()
        after.look()
    assert after.server.uploaded_speakers == {}


def test_another_registry_at_the_same_address_takes_nothing_away(
    start: Start, process: Make, caplog: pytest.LogCaptureFixture
):
    """A wrong DNS entry must not empty a server, neither while it runs nor when it starts again. Both servers
    go on by themselves when the entry is right again.
    """
    registry, other = start(), start()
    made = registry.ready("alice", ref_text="Hi.")
    other.ready("mallory")
    led = Led(registry)
    before = process("http://registry.test", led)
    before.look()
    files = set(before.server.uploaded_speakers_dir.iterdir())
    led.registry = other
    before.look()
    after = process("http://registry.test", led)
    after.look()
    for one in (before, after):
        assert one.server.uploaded_speakers.keys() == {"alice", "alice@1"}
        assert (one.ask("alice").voice, one.ask("alice").fault) == ("alice@1", None)
        assert {key[1] for key in one.cache._cache} <= {"alice", "alice@1"}
    assert set(after.server.uploaded_speakers_dir.iterdir()) == files
    [_, told] = [text for text in caplog.messages if "cannot be followed now" in text]
    assert "'alice@1', of another registry than" in told
    led.registry = registry
    for one in (before, after):
        one.look()
        key = one.cache.make_cache_key("alice@1", "qwen3_tts_icl", made["created_at"])
        assert one.cache.get(key) is not None
    registry.client.delete("/v1/voices/alice")
    after.look()
    assert after.server.uploaded_speakers == {}
    assert set(after.server.uploaded_speakers_dir.iterdir()) == set()


class Samples:
    """The registry's voices in a server of vLLM-Omni, whose transcripts are the ids of the versions."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPEAKER_SAMPLES_DIR", str(folder))
        self._folder, self._entries = folder, list[ManifestEntry]()
        self.faults: dict[str, Exception] = {}
        """Errors of clips, by the ids of their versions."""
        self.is_away = False
        """True if the registry has no answer to questions about versions."""
        self.deleted: set[str] = set()
        """References of versions that the registry has deleted."""
        self.restart()

    def restart(self) -> None:
        self.server = object.__new__(readers().serving_speech.OmniOpenAIServingSpeech)
        self.server._init_speaker_storage()
        self.voices = UploadedVoices(self.server, self._sample, self._version, Loop().run)  # type: ignore[arg-type]

    def show(self, *entries: ManifestEntry) -> None:
        """Look at a registry that has these voices."""
        self._entries = list(entries)
        self.voices.withdraw_others({one.voice_id: one for one in entries})
        for one in entries:
            self.voices.offer(one, "one")

    def _sample(self, reference: str, facts: Mapping[str, str]) -> bytes:
        [entry] = [one for one in self._entries if one.reference == reference]
        if entry.version_id in self.faults:
            raise self.faults[entry.version_id]
        header = {"ref_text": entry.version_id, "created_at": str(entry.created_at), **facts}
        return safetensors.numpy.save({"audio": np.zeros(8, np.float32)}, metadata=header)

    def _version(self, reference: str) -> SimpleNamespace:
        if self.is_away:
            raise Unavailable("away")
        if reference in self.deleted:
            raise VersionNotFound("deleted")
        ids = {one.reference: one.version_id for one in self._entries}
        return SimpleNamespace(id=ids.get(reference, f"v{reference.rpartition('@')[2]}"))

    def heard(self) -> dict[str, str]:
        return {name: one["ref_text"] for name, one in self.server.uploaded_speakers.items()}

    def kept(self) -> list[str]:
        """Return what is heard in the files of the folder."""
        headers = [safe_open(path, framework="numpy").metadata() for path in self._folder.iterdir()]
        return sorted(header["ref_text"] for header in headers)


LOST, ANEW = entry("wren", 2, version_id="lost"), entry("wren", 2, version_id="anew", created_at=107)


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Samples:
    return Samples(tmp_path / "samples", monkeypatch)


@pytest.mark.parametrize("between", ["nothing", "a restart", "a look", "a look and a restart"])
def test_a_number_that_was_given_again_means_the_new_version(samples: Samples, between: str):
    """It is given again after the registry was restored from a backup. The lost clip is nobody's any more,
    and would outlive its voice.
    """
    samples.show(LOST)
    if "look" in between:
        samples.show(entry("wren"))
        assert samples.heard() == {"wren": "v1", "wren@1": "v1", "wren@2": "lost"}
    if "restart" in between:
        samples.restart()
    samples.show(ANEW)
    assert {"wren": "anew", "wren@2": "anew"}.items() <= samples.heard().items()
    assert samples.server._voice_created_at("wren@2") == 107
    assert "lost" not in samples.kept()
    samples.show()
    assert samples.kept() == []


@pytest.mark.parametrize("spelling", ["ärger", "Ärger", " A\u0308RGER ", "a\u0308rger"])
def test_a_voice_is_found_in_every_spelling_that_the_registry_accepts(samples: Samples, spelling: str):
    """Keyboards and file names of some systems have letter and accent apart."""
    samples.show(entry("Ärger"))
    request = SimpleNamespace(voice=spelling, ref_audio=None)
    samples.voices.pin(request)
    assert request.voice == "ärger@1"
    assert request.voice in samples.server.uploaded_speakers
    request.voice = spelling.strip() + "@1"
    samples.voices.pin(request)
    assert request.voice == "ärger@1"


@pytest.mark.parametrize(
    ("own", "meant"),
    [
        pytest.param("ärger@1", "ärger", id="hides the version, not the spellings"),
        pytest.param("a\u0308rger", "A\u0308rger", id="is heard in its own spelling"),
    ],
)
def test_what_a_spelling_means_beside_an_upload_to_the_server(samples: Samples, own: str, meant: str):
    samples.show(entry("Ärger"))
    samples.server.uploaded_speakers[own] = {"file_path": "/nowhere"}
    request = SimpleNamespace(voice="A\u0308rger", ref_audio=None)
    samples.voices.pin(request)
    assert request.voice == meant


def test_files_that_a_killed_process_left_are_erased(samples: Samples, tmp_path: Path):
    """It may be killed after it wrote the file of the new version, and before it erased that of the lost one.
    vLLM-Omni then takes over whichever it reads last.
    """
    samples.show(LOST)
    [path] = (tmp_path / "samples").iterdir()
    content = path.read_bytes()
    samples.show(ANEW)
    path.write_bytes(content)
    own = tmp_path / "samples" / "own.safetensors"
    own.write_bytes(content.replace(b"registry_voice_id", b"another_person_id"))
    samples.restart()
    samples.show(ANEW)
    assert samples.heard()["wren"] == "anew"
    assert samples.kept() == ["anew", "lost"]
    own.unlink()
    assert samples.kept() == ["anew"]


def test_a_clip_that_a_killed_process_was_writing_is_erased(samples: Samples, tmp_path: Path):
    """It has all that a finished file has, and nothing else would ever erase it."""
    folder = tmp_path / "samples"
    samples.show(ANEW)
    [path] = folder.iterdir()
    abandoned, others = (folder / f".{name}.0123abcd.part" for name in (path.name, "own.safetensors"))
    for one in (abandoned, others):
        one.write_bytes(path.read_bytes())
        os.utime(one, (1, 1))
    samples.restart()
    samples.show(ANEW)
    assert set(folder.iterdir()) == {path, others}


@pytest.mark.parametrize("size", [0, 100, -4])
def test_a_file_that_cannot_be_read_is_replaced(
    samples: Samples, tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int
):
    """A full disk or a power failure leaves such a file. It must not keep the other voices out."""
    samples.show(entry("wren"))
    [path] = (tmp_path / "samples").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    samples.restart()
    for _ in range(2):
        samples.show(entry("wren"), entry("robin"))
    assert samples.heard().keys() == {"wren", "wren@1", "robin", "robin@1"}
    assert len(path.read_bytes()) == len(whole)
    assert samples.kept() == ["v1", "v1"]
    assert [path.name in text for text in caplog.messages if "is replaced" in text] == [True]


def test_a_file_that_another_process_writes_meanwhile_is_not_called_unreadable(
    samples: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The API processes of a server share a folder, and start with the same voices."""
    other, fetched = Samples(tmp_path / "samples", monkeypatch), samples._sample

    def fetched_later(reference: str, facts: Mapping[str, str]) -> bytes:
        other.show(entry("wren"))
        return fetched(reference, facts)

    monkeypatch.setattr(samples.voices, "_sample", fetched_later)
    samples.show(entry("wren"))
    assert samples.heard() == other.heard() == {"wren": "v1", "wren@1": "v1"}
    assert caplog.messages == []


@pytest.mark.parametrize("file", ["alice_1_own_7.safetensors", "registry-own_7.safetensors", "z.safetensors"])
def test_an_upload_named_like_a_version_is_heard_after_a_restart(samples: Samples, tmp_path: Path, file: str):
    """vLLM-Omni keeps one voice of each name when it starts: the last file of the folder."""
    samples.show(entry("alice"))
    (tmp_path / "samples" / file).write_bytes(own_file("Alice@1"))
    samples.restart()
    assert samples.heard() == {"alice": "v1", "alice@1": "own"}
    samples.show(entry("alice"))
    assert samples.heard() == {"alice": "v1", "alice@1": "own"}
    samples.show()
    assert samples.heard() == {"alice@1": "own"}
    assert samples.kept() == ["own"]


@pytest.mark.parametrize("hidden", [["alice@1"], ["alice", "alice@1"]])
def test_hidden_voices_are_known_to_be_of_another_registry(
    samples: Samples, tmp_path: Path, hidden: list[str]
):
    """Their clips would otherwise be erased as those of deleted voices."""
    samples.show(entry("alice"))
    for name in hidden:
        (tmp_path / "samples" / f"z{name}.safetensors").write_bytes(own_file(name))
    samples.restart()
    with pytest.raises(Unavailable, match="such as 'alice@1', of another registry than 'other'"):
        samples.voices.check_registry("other")
    samples.voices.check_registry("one")
    samples.show(entry("alice"))
    assert samples.kept() == ["own"] * len(hidden) + ["v1"]
    samples.show()
    assert samples.kept() == ["own"] * len(hidden)


def own_file(name: str) -> bytes:
    """Return the file of an upload to the server itself."""
    header = {"name": name, "voice_name_lower": name.lower(), "created_at": "7", "ref_text": "own"}
    return safetensors.numpy.save({"audio": np.zeros(8, np.float32)}, metadata=header)


def test_clips_that_cannot_be_erased_keep_no_voice_in_the_server_and_go_later(
    samples: Samples, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A folder may be read-only for a while. The persons' names and clips must not stay because of it."""
    samples.show(entry("wren"), entry("robin"), entry("amy"))

    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(1, "Operation not permitted", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        for _ in range(2):
            samples.show(entry("amy"), entry("bea"))
            assert samples.heard().keys() == {*names("amy", "bea")}
    assert len([text for text in caplog.messages if "cannot be erased now" in text]) == 2
    assert len(samples.kept()) == 4
    samples.show(entry("amy"), entry("bea"))
    assert len(samples.kept()) == 2


def test_a_file_of_the_server_itself_is_never_erased(samples: Samples, tmp_path: Path):
    """Whoever names a voice `registry-guest` has a file whose name begins like those of the registry."""
    own = tmp_path / "samples" / "registry-guest_consent_7.safetensors"
    own.write_bytes(b"damaged")
    samples.restart()
    samples.show()
    assert own.exists()


@pytest.mark.parametrize(("before", "after"), [(entry("wren"), entry("wren", 2)), (LOST, ANEW)])
def test_a_deleted_version_goes_although_its_successor_cannot_be_fetched(
    samples: Samples, caplog: pytest.LogCaptureFixture, before: ManifestEntry, after: ManifestEntry
):
    """It may have been deleted because somebody withdrew their consent to this recording."""
    samples.show(before)
    samples.faults = {after.version_id: ClipDamaged("The clip is missing.")}
    if before.version == after.version:
        assert samples.heard()["wren"] == "lost"
    else:
        samples.show(after)
        assert samples.heard() == {"wren": "v1", "wren@1": "v1"}
        samples.deleted.add(before.reference)
    for _ in range(3):
        samples.show(after, entry("robin"))
        assert samples.heard().keys() == {"robin", "robin@1"}
    assert samples.kept() == ["v1"]
    samples.faults = {after.version_id: ClipDamaged("The clip is damaged.")}
    samples.show(after)
    told = [text.rpartition(": ")[2] for text in caplog.messages if "cannot be offered now" in text]
    assert told == ["The clip is missing.", "The clip is damaged."]
    samples.faults = {}
    samples.show(after)
    assert samples.heard().keys() == {"wren", "wren@2"}


@pytest.mark.parametrize("fault", [Unavailable("no answer"), OSError(28, "No space left on device")])
def test_a_deleted_version_goes_also_if_its_successor_finds_no_answer_or_no_space(
    samples: Samples, fault: Exception
):
    """The question about the deleted version may have an answer all the same."""
    samples.show(entry("wren"))
    samples.faults = {"v2": fault}
    samples.deleted.add(entry("wren").reference)
    for samples.is_away in (True, False):
        assert samples.heard() == {"wren": "v1", "wren@1": "v1"}
        with pytest.raises(type(fault)):
            samples.show(entry("wren", 2))
    assert (samples.heard(), samples.kept()) == ({}, [])


class NoAnswer(httpx.HTTPTransport):
    """A registry that has no answer for the clips and artifacts of some voices, and counts these requests."""

    def __init__(self) -> None:
        super().__init__()
        self.voices: set[str] = set()
        """The ids of the voices."""
        self.asked = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if any(voice in path for voice in self.voices) and ("/audio/" in path or "/artifacts/" in path):
            self.asked += 1
            return httpx.Response(503, headers={"retry-after": "60"})
        return super().handle_request(request)


def test_a_voice_without_an_answer_keeps_no_other_one_out(
    start: Start, process: Make, caplog: pytest.LogCaptureFixture
):
    """The store may be unable to read one object. Two failures in a look mean that the registry is away."""
    registry, transport = start(), NoAnswer()
    one = process(registry.url, transport)
    for name in ("amy", "bea", "cleo", "dora"):
        registry.upload(name)
    ids = {name: registry.client.get(f"/v1/voices/{name}").json()["id"] for name in ("amy", "bea", "cleo")}
    transport.voices = {ids["amy"]}
    for _ in range(2):
        one.look()
        assert one.server.uploaded_speakers.keys() == {*names("bea", "cleo", "dora")}
    assert [text.split(" cannot")[0] for text in caplog.messages if "cannot be" in text] == ["Voice amy"]
    for name in ("bea", "cleo", "eve"):
        registry.ready(name, clip=OTHER_CLIP)
    transport.voices = set(ids.values())
    for _ in range(4):
        transport.asked = 0
        one.look()
        assert 2 <= transport.asked <= 3  # no second voice after one without clip and artifact
    assert {*names("eve")} <= one.server.uploaded_speakers.keys()
    transport.voices = set()
    one.look()
    assert {"amy@1", "bea@2", "cleo@2"} <= one.server.uploaded_speakers.keys()


def test_a_voice_whose_file_cannot_be_written_keeps_no_other_one_out(start: Start, process: Make):
    registry = start()
    for name in ("amy", "bea", "cleo"):
        registry.upload(name)
    before = process(registry.url)
    before.look()
    for path in before.server.uploaded_speakers_dir.iterdir():
        path.unlink()
    blocked = Path(before.server.uploaded_speakers["amy@1"]["file_path"])
    blocked.mkdir()
    one = process(registry.url)
    one.look()
    assert one.server.uploaded_speakers.keys() == {*names("bea", "cleo")}
    blocked.rmdir()
    one.look()
    assert {*names("amy")} <= one.server.uploaded_speakers.keys()


def test_a_folder_that_is_full_is_told_once_an_hour(
    start: Start, process: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Each look fails at other voices, whose files have other names. A log that tells each fills the disk."""
    registry = start()
    for name in ("amy", "bea", "cleo", "dora"):
        registry.upload(name)

    def fail(path: Path, _: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    one = process(registry.url)
    with monkeypatch.context() as patch:
        patch.setattr(uploads, "write_atomically", fail)
        for _ in range(4):
            one.look()
    folder = str(one.server.uploaded_speakers_dir)
    assert [text for text in caplog.messages if "No space left" in text] == [
        f"The folder {folder!a} cannot be written to: No space left on device; new voices are not offered."
    ]
    one.look()
    assert one.server.uploaded_speakers.keys() == {*names("amy", "bea", "cleo", "dora")}


def test_a_folder_that_was_removed_is_made_again(start: Start, process: Make):
    """Whoever cleans up may remove it while the server runs, and vLLM-Omni makes it only when it starts."""
    registry = start()
    for name in ("amy", "bea"):
        registry.upload(name)
    one = process(registry.url)
    one.look()
    folder = one.server.uploaded_speakers_dir
    files = set(folder.iterdir())
    shutil.rmtree(folder)
    one.look()
    assert set(folder.iterdir()) == files


def names(*voices: str) -> list[str]:
    return [name for voice in voices for name in (voice, f"{voice}@1")]


def test_a_broken_registry_is_told_once_an_hour(
    process: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A server whose key was revoked keeps deleted voices, and one line among those of months is not seen."""
    now, monotonic = 0.0, time.monotonic
    monkeypatch.setattr(plugin_module, "time", SimpleNamespace(monotonic=lambda: monotonic() + now))
    one = process("http://127.0.0.1:1")
    for expected in (1, 2):
        for _ in range(3):
            one.look()
        assert len([text for text in caplog.messages if "cannot be followed now" in text]) == expected
        now += 3600


@pytest.fixture
def vllm_omni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make vLLM-Omni's modules importable, and undo what the plugin changes."""
    for name in ("vllm_omni", "vllm_omni.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, CACHE, readers().speaker_cache)
    monkeypatch.setitem(sys.modules, serving.MODULE, readers().serving_speech)
    monkeypatch.setattr(readers().speaker_cache, "_SINGLETON", None)
    server_class = readers().serving_speech.OmniOpenAIServingSpeech
    for name in (serving._INIT, *serving._TAKE_REQUESTS):
        monkeypatch.setattr(server_class, name, getattr(server_class, name))
    monkeypatch.setattr(plugin_module, "_activated", threading.Lock())


def test_vllm_omnis_own_loader_starts_the_plugin(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vllm_omni: None
):
    """The whole way: found by its entry point, started, and at work in the cache and the server."""
    registry = start()
    registry.ready("alice", ref_text="Hi.")
    monkeypatch.setenv("SPEAKER_SAMPLES_DIR", str(tmp_path / "samples"))
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", registry.url)
    monkeypatch.setenv("SPEAKER_REGISTRY_PROFILE", PROFILE)
    monkeypatch.setenv("SPEAKER_REGISTRY_POLL_SECONDS", "0.1")
    theirs = readers().plugins
    monkeypatch.setattr(theirs, "envs", SimpleNamespace(VLLM_PLUGINS=None))
    found = theirs.load_omni_plugins_by_group(theirs.OMNI_DEFAULT_PLUGINS_GROUP)
    assert found["speaker_registry"] is activate
    running = found["speaker_registry"]()
    try:
        assert activate() is None  # vLLM-Omni may load plugins several times

        async def serve() -> SimpleNamespace:
            server = object.__new__(readers().serving_speech.OmniOpenAIServingSpeech)
            server._init_speaker_storage()
            server._tts_model_type = "fish_tts"
            while "alice" not in server.uploaded_speakers:
                await asyncio.sleep(0.01)
            request = SimpleNamespace(voice="alice", ref_audio=None, ref_text=None)
            server._apply_uploaded_speaker(request)
            request.created_at = server._voice_created_at(request.voice)
            return request

        request = asyncio.run(asyncio.wait_for(serve(), 60))
        assert (request.voice, request.ref_text) == ("alice@1", "Hi.")
        cache = readers().speaker_cache.get_speaker_cache()
        key = cache.make_cache_key("alice@1", "qwen3_tts_icl", request.created_at)
        wait_until(lambda: cache.get(key) is not None)
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, None),
        ({"SPEAKER_REGISTRY_PROFILE": PROFILE}, "SPEAKER_REGISTRY_URL"),
        (
            {"SPEAKER_REGISTRY_PROFILE": PROFILE, "SPEAKER_REGISTRY_POLL_SECONDS": "often"},
            "'often'; accepted: seconds from 0.1 to 3600",
        ),
        (
            {"SPEAKER_REGISTRY_PROFILE": PROFILE, "SPEAKER_REGISTRY_URL": "registry"},
            "registry",
        ),
    ],
)
def test_wrong_settings_keep_no_server_from_starting(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    vllm_omni: None,
    variables: dict[str, str],
    says: str | None,
):
    monkeypatch.delenv("SPEAKER_REGISTRY_URL", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert activate() is None
    assert [says in text for text in caplog.messages if "plugin does nothing" in text] == [True] * bool(says)


def test_servers_are_found_if_their_module_is_imported_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Plugins are loaded before the API server is imported in some processes, and after it in others."""
    package = tmp_path / "vllm_omni/entrypoints/openai"
    package.mkdir(parents=True)
    (package / "serving_speech.py").write_text(
        "class OmniOpenAIServingSpeech:\n"
        "    def _init_speaker_storage(self): self.ready = True\n"
        "    def _validate_tts_request(self, request): return request.voice\n"
        "    async def _prepare_speech_generation(self, request): return request.voice\n"
        "    def _apply_uploaded_speaker(self, request): return request.voice\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_omni"]:
        monkeypatch.delitem(sys.modules, name)

    class Pins:
        def pin(self, request: Any) -> None:
            request.voice = f"{request.voice}@1"

    servers: list[Any] = []

    def add(server: Any, _: Loop) -> UploadedVoices:
        servers.append(server)
        return Pins()  # type: ignore[return-value]

    serving.wrap_servers(add)
    from vllm_omni.entrypoints.openai import serving_speech  # noqa: PLC0415

    try:
        made = serving_speech.OmniOpenAIServingSpeech()
        made._init_speaker_storage()
        assert (servers, made.ready) == ([made], True)
        assert made._validate_tts_request(SimpleNamespace(voice="a")) == "a@1"
        assert asyncio.run(made._prepare_speech_generation(SimpleNamespace(voice="a"))) == "a@1"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_omni"]:
            del sys.modules[name]


def test_voices_change_between_two_steps_of_the_loop(start: Start, process: Make):
    """Handlers iterate over the voices, and must not meet a change in the middle."""
    seen: list[bool] = []

    async def serve() -> None:
        loop = Loop()
        await asyncio.to_thread(loop.run, lambda: seen.append(asyncio.get_running_loop() is not None))

    asyncio.run(serve())
    assert seen == [True]
