"""Tests of the pusher, with vLLM-Omni's own storage of uploaded voices as the server."""

import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from speaker_registry import errors
from speaker_registry.cli import pushing as push_command
from speaker_registry.cli.syncing import carry_out
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.manifests import Manifest, ManifestEntry, ManifestPage, ReceivedPage
from speaker_registry.names import MAX_NAME_LENGTH
from speaker_registry.pushing import pusher as pusher_module
from speaker_registry.pushing.pusher import GRACE_SECONDS, Pusher
from speaker_registry.pushing.speech_server import SpeechServer, UploadRefused
from speaker_registry.reference_audio import ReferenceAudio
from speaker_registry.syncing.synchronization import Report
from tests.unit.sdk.fake_registry import QWEN
from tests.unit.sdk.test_following import OTHER, REGISTRY, entry
from tests.vllm_omni_server import VoiceServer

LATER = GRACE_SECONDS + 1


class Client:
    """A registry with a manifest, and a clip for each version."""

    def __init__(self, url: str = "http://registry.test") -> None:
        self.url = url
        self.registry = REGISTRY
        """The identity of the registry."""
        self.voices: list[ManifestEntry] = []
        self.away = False
        self.seconds = 1.5
        self.faults: dict[str, SpeakerRegistryError] = {}
        """Errors by reference."""
        self.deleted: set[str] = set()
        """References of deleted versions."""
        self.changed_at = 0.0
        """Time of the last change of every voice."""
        self.asked = 0
        """The number of questions about one voice."""

    def manifest(self, profile: str, known: Manifest | None = None) -> Manifest:
        page = self.manifest_page(profile)
        return Manifest(self.registry, "default", profile, "qwen3_tts", {"": ReceivedPage(None, page)})

    def manifest_page(self, profile: str, *, limit: int | None = None) -> ManifestPage:
        if self.away:
            raise errors.Unavailable("away")
        return ManifestPage(
            registry=self.registry,
            namespace="default",
            profile=profile,
            model_type="qwen3_tts",
            data=self.voices,
            has_more=False,
        )

    def samples(self, reference: str) -> ReferenceAudio:
        if reference in self.faults:
            raise self.faults[reference]
        version = int(reference.rpartition("@")[2])
        count = int(16_000 * self.seconds)
        return ReferenceAudio(np.linspace(-0.9, 0.9, count, dtype=np.float32) / version, 16_000)

    def history(self, _: str, *, limit: int) -> list[SimpleNamespace]:
        self.asked += 1
        return [SimpleNamespace(at=self.changed_at)][:limit]

    def version(self, reference: str) -> SimpleNamespace:
        self.asked += 1
        if reference in self.deleted:
            raise errors.VersionNotFound("deleted")
        ids = {one.reference: one.version_id for one in self.voices}
        former = f"v{reference.rpartition('@')[2]}"
        return SimpleNamespace(source="embedding", id=ids.get(reference, former))

    def download(self, reference: str, profile: str) -> SimpleNamespace:
        tensors = {"speaker_embedding": np.full(1024, 0.25, np.float32)}
        return SimpleNamespace(artifact=SimpleNamespace(tensors=tensors))


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VoiceServer:
    return VoiceServer(tmp_path / "speakers", monkeypatch)


@pytest.fixture(autouse=True)
def shuffled(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], list[Any]]:
    """Keep voices in the order that a test gives, and return the function that would shuffle them."""
    shuffle = pusher_module._shuffled
    monkeypatch.setattr(pusher_module, "_shuffled", list)
    return shuffle


Make = Callable[..., Pusher]


@pytest.fixture
def make(client: Client, server: VoiceServer) -> Make:
    """Return a function that makes a pusher, as a process does when it starts."""

    def pusher(of: Client = client, **options: Any) -> Pusher:
        speech = SpeechServer("http://tts.test", transport=server.transport())
        options = {"clock": lambda: 1000.0 + server.later, **options}
        return Pusher(of, speech, profile=QWEN, **options)  # type: ignore[arg-type]

    return pusher


def states(pusher: Pusher) -> dict[str, str]:
    return {f"{one.name}@{one.version}": one.state for one in pusher.run().outcomes}


def reason(pusher: Pusher) -> str:
    """Return the only reason of a run."""
    [found] = [one.reason for one in pusher.run().outcomes if one.reason]
    return found


def test_a_voice_arrives_as_it_is(client: Client, server: VoiceServer, make: Make):
    """The server clones from the very samples that the registry has, and from their transcript."""
    client.voices = [entry("Alice", 3, ref_text="Hi.")]
    assert states(make()) == {"Alice@3": "written"}
    info = server.speech.uploaded_speakers["alice@3"]
    assert (info["ref_text"], info["sample_rate"], info["mime_type"]) == ("Hi.", 16_000, "audio/wav")
    samples, rate = server.speech._load_uploaded_audio("alice@3")
    assert rate == 16_000
    assert np.array_equal(samples, client.samples("voice_Alice@3").samples)


def test_an_embedding_arrives_without_a_clip(client: Client, server: VoiceServer, make: Make):
    client.voices = [entry("eve", source="embedding")]
    assert states(make()) == {"eve@1": "written"}
    assert server.speech._get_uploaded_speaker_embedding("eve@1") == [0.25] * 1024


@pytest.mark.parametrize("source", ["audio", "embedding"])
@pytest.mark.parametrize("character", ["n", "é", "語", "👩"])
def test_the_longest_names_of_the_registry_arrive(
    client: Client, server: VoiceServer, make: Make, character: str, source: str
):
    """vLLM-Omni puts the name and the mark into the name of one file."""
    named = {"voice_id": f"voice_{'0' * 32}_x-{'0' * 40}", "version_id": "1" * 32, "source": source}
    client.voices = [entry(character * MAX_NAME_LENGTH, 99_999_999, **named)]
    assert [one.state for one in make().run().outcomes] == ["written"]
    assert [one.state for one in make().run().outcomes] == ["unchanged"]
    server.start()
    assert [one.state for one in make().run().outcomes] == ["unchanged"]


@pytest.mark.parametrize("source", ["audio", "embedding"])
def test_a_name_that_becomes_too_long_keeps_no_other_one_out(
    client: Client, server: VoiceServer, make: Make, source: str
):
    """Some letters become two in lower case. The server would fail at an embedding of such a name, which
    looks like a server without an answer.
    """
    client.voices = [entry("İ" * MAX_NAME_LENGTH, source=source), entry("alice")]
    report = make().run()
    assert sorted(one.state for one in report.outcomes) == ["missing", "written"]
    assert [one.reason for one in report.outcomes if one.reason] == [
        "its name in vLLM-Omni would have 258 characters; accepted: up to 137"
    ]
    assert (report.fault, server.count("POST")) == (None, 1)


def test_nothing_is_sent_twice(client: Client, server: VoiceServer, make: Make):
    """A poll without news costs the server one list."""
    client.voices = [entry("alice"), entry("bob")]
    pusher = make()
    pusher.run()
    assert states(pusher) == {"alice@1": "unchanged", "bob@1": "unchanged"}
    assert (server.count("POST"), server.count("DELETE")) == (2, 0)


def test_a_deleted_version_goes_although_its_successor_cannot_be_uploaded(
    client: Client, server: VoiceServer, make: Make
):
    """It may have been deleted because somebody withdrew their consent to this recording."""
    client.voices = [entry("alice"), entry("bob")]
    pusher = make()
    pusher.run()
    client.voices = [entry("alice", 2), entry("bob", 2)]
    client.faults = {f"voice_{name}@2": errors.AudioNotFound("lost") for name in ("alice", "bob")}
    assert states(pusher) == {"alice@2": "kept", "bob@2": "kept"}
    client.deleted = {"voice_alice@1"}
    assert states(pusher) == {"alice@2": "missing", "bob@2": "kept"}
    assert server.names == {"bob@1"}


def test_a_replaced_version_stays_until_its_grace_is_over(client: Client, server: VoiceServer, make: Make):
    """Requests and clients that still name the former version are served meanwhile."""
    client.voices = [entry("alice")]
    pusher = make()
    pusher.run()
    client.voices = [entry("alice", 2)]
    assert states(pusher) == {"alice@2": "written"}
    server.later = GRACE_SECONDS - 60
    pusher.run()
    assert server.names == {"alice@1", "alice@2"}
    server.later = LATER
    assert pusher.run().removed == 1
    assert server.names == {"alice@2"}


def test_the_grace_of_a_version_ends_also_if_each_push_is_a_process_of_its_own(
    client: Client, server: VoiceServer, make: Make
):
    """A job that runs once an hour cleans up as well as one that watches."""
    client.voices = [entry("alice")]
    make().run()
    client.voices = [entry("alice", 2)]
    make().run()
    make().run()
    assert server.names == {"alice@1", "alice@2"}
    server.later = LATER
    make().run()
    assert server.names == {"alice@2"}


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_clock_that_is_set_changes_nothing_for_a_watching_pusher(
    client: Client, server: VoiceServer, make: Make, jump: float
):
    """A replaced version would stay for hours, or leave at once, and so with a clip that was refused."""
    now = 1000.0
    client.voices = [entry("alice")]
    pusher = make(clock=lambda: now)
    pusher.run()
    server.later = jump
    client.voices = [entry("alice", 2)]
    pusher.run()
    client.voices, client.seconds = [entry("alice", 2), entry("carol")], 0.5
    assert states(pusher) == {"alice@2": "unchanged", "carol@1": "missing"}
    client.seconds = 1.5
    now += GRACE_SECONDS - 1
    assert states(pusher) == {"alice@2": "unchanged", "carol@1": "missing"}
    assert server.names == {"alice@1", "alice@2"}
    now += 2
    assert states(pusher) == {"alice@2": "unchanged", "carol@1": "written"}
    assert server.names == {"alice@2", "carol@1"}


def test_a_version_that_was_rolled_back_keeps_its_grace(client: Client, server: VoiceServer, make: Make):
    """The version that takes over again has been there for long, but clients have not named it meanwhile."""
    pusher = make()
    for version in (1, 2):
        client.voices = [entry("alice", version)]
        pusher.run()
    server.later = GRACE_SECONDS - 60
    pusher.run()
    client.voices = [entry("alice", 1)]
    pusher.run()
    server.later += 120
    assert states(pusher) == {"alice@1": "unchanged"}
    assert server.names == {"alice@1", "alice@2"}
    server.later += GRACE_SECONDS
    pusher.run()
    assert server.names == {"alice@1"}


def test_a_version_that_was_rolled_back_leaves_also_if_each_push_is_a_process_of_its_own(
    client: Client, server: VoiceServer, make: Make
):
    """A process that has just started learns from the registry when the rollback was."""
    for version in (1, 2):
        client.voices = [entry("alice", version), entry("bob")]
        make().run()
    server.later = GRACE_SECONDS - 60
    client.voices, client.changed_at = [entry("alice", 1), entry("bob")], time.time() + server.later
    asked = client.asked
    for _ in range(2):
        make().run()
        assert server.names == {"alice@1", "alice@2", "bob@1"}
    assert client.asked == asked + 4, "about the replaced version, and about no other voice"
    server.later += LATER
    make().run()
    assert server.names == {"alice@1", "bob@1"}


@pytest.mark.parametrize("each_push_is_a_process", [True, False])
def test_a_version_that_was_rolled_back_and_deleted_leaves_at_once(
    client: Client, server: VoiceServer, make: Make, each_push_is_a_process: bool
):
    """It may have been deleted because somebody withdrew their consent to this recording."""
    watching = make()
    for version in (1, 2, 1):
        client.deleted = {"voice_alice@2"} if "alice@2" in server.names else set()
        client.voices, client.changed_at = [entry("alice", version)], time.time()
        (make() if each_push_is_a_process else watching).run()
    assert server.names == {"alice@1"}


def test_a_deleted_voice_leaves_at_once(client: Client, server: VoiceServer, make: Make, tmp_path: Path):
    """Nothing of a person stays in the server, neither a clip on disk nor a former version."""
    pusher = make()
    for version in (1, 2):
        client.voices = [entry("alice", version), entry("bob")]
        pusher.run()
    client.voices = [entry("bob")]
    assert pusher.run().removed == 2
    assert server.names == {"bob@1"}
    assert len(list((tmp_path / "speakers").iterdir())) == 1


def test_voices_of_others_are_left_alone(client: Client, server: VoiceServer, make: Make):
    """A foreign voice is neither overwritten nor deleted, and the report says that its name is taken."""
    with httpx.Client(transport=server.transport(), base_url="http://tts.test") as other:
        clip = client.samples("voice@1").to_wav()
        for name in ("alice@1", "carol"):
            parts = {"name": (None, name), "consent": (None, "theirs"), "audio_sample": ("a.wav", clip)}
            assert other.post("/v1/audio/voices", files=parts).status_code == 200
    before = dict(server.speech.uploaded_speakers)
    client.voices = [entry("alice")]
    pusher = make()
    assert "'alice@1' that was not pushed from here" in reason(pusher)
    client.voices = []
    pusher.run()
    assert server.speech.uploaded_speakers == before


def test_two_registries_push_to_one_server(server: VoiceServer, make: Make):
    """Neither takes the voices of the other one for its own that were deleted."""
    one, other = Client("http://one.test"), Client("http://other.test")
    one.voices, other.voices = [entry("alice")], [entry("bob")]
    pushers = [make(one), make(other)]
    for pusher in pushers * 2:
        pusher.run()
    assert server.names == {"alice@1", "bob@1"}
    one.voices = []
    pushers[0].run()
    assert server.names == {"bob@1"}


@pytest.mark.parametrize("theirs", [[], [entry("alice", voice_id="voice_theirs"), entry("carol")]])
def test_another_registry_at_the_same_address_is_refused_after_a_restart(
    client: Client, server: VoiceServer, make: Make, theirs: list[ManifestEntry]
):
    """A pusher that restarts behind a wrong DNS entry would otherwise delete all voices as removed ones."""
    ours = client.voices = [entry("alice"), entry("bob")]
    make().run()
    client.registry, client.voices = OTHER, theirs
    for _ in range(2):
        with pytest.raises(errors.InvalidRequest) as caught:
            make().run()
    assert str(caught.value) == (
        f"http://tts.test has voices, such as 'alice@1', that were pushed from another registry than "
        f"'{OTHER}', which answers at http://registry.test now; they stay as they are. Check where the "
        "address of the registry leads. If the registry was replaced on purpose, delete these voices there "
        "first"
    )
    assert (server.names, server.count("POST"), server.count("DELETE")) == ({"alice@1", "bob@1"}, 2, 0)
    client.registry, client.voices = REGISTRY, ours
    assert states(make()) == {"alice@1": "unchanged", "bob@1": "unchanged"}
    client.registry, client.voices = OTHER, [entry("carol")]
    with httpx.Client(transport=server.transport(), base_url="http://tts.test") as operator:
        for name in ("alice@1", "bob@1"):
            assert operator.delete(f"/v1/audio/voices/{name}").status_code == 200
    assert states(make()) == {"carol@1": "written"}


def test_it_goes_on_after_a_restart_of_either_side(client: Client, server: VoiceServer, make: Make):
    """A pusher finds what a former one has pushed. A server that forgot its uploads gets them again."""
    client.voices = [entry("alice"), entry("bob")]
    pusher = make()
    pusher.run()
    server.start()
    assert states(pusher) == states(make()) == {"alice@1": "unchanged", "bob@1": "unchanged"}
    for file in server.speech.uploaded_speakers_dir.iterdir():
        file.unlink()
    server.start()
    assert states(pusher) == {"alice@1": "written", "bob@1": "written"}


def test_another_version_under_the_same_number_is_uploaded_anew(
    client: Client, server: VoiceServer, make: Make
):
    """A registry that was restored from a backup gives the number of a lost version again."""
    client.voices = [entry("alice", 2), entry("bob")]
    pusher = make(slots=2)
    pusher.run()
    lost = server.speech.uploaded_speakers["alice@2"]["created_at"]
    client.voices = [entry("alice", 2, version_id="other", ref_text="Other."), entry("bob")]
    assert states(pusher) == {"alice@2": "written", "bob@1": "unchanged"}
    info = server.speech.uploaded_speakers["alice@2"]
    assert info["ref_text"] == "Other."
    assert info["created_at"] > lost, "the server would take the clip for the one that it has in its cache"
    assert states(make(slots=2)) == {"alice@2": "unchanged", "bob@1": "unchanged"}


def test_a_lost_version_is_no_successor_of_another_one(client: Client, server: VoiceServer, make: Make):
    """Its number was given again to a version that cannot be uploaded."""
    pusher = make()
    for version in (1, 2):
        client.voices = [entry("alice", version)]
        pusher.run()
    client.voices = [entry("alice", 2, version_id="other")]
    client.faults["voice_alice@2"] = errors.AudioNotFound("lost")
    server.later = LATER
    assert states(pusher) == {"alice@2": "kept"}
    assert server.names == {"alice@1"}, "version 2, which is lost, leaves like a deleted one"


def test_a_voice_that_was_taken_out_of_the_server_comes_back(client: Client, server: VoiceServer, make: Make):
    client.voices = [entry("alice")]
    pusher = make()
    pusher.run()
    with httpx.Client(transport=server.transport(), base_url="http://tts.test") as other:
        assert other.delete("/v1/audio/voices/alice@1").status_code == 200
    assert states(pusher) == {"alice@1": "written"}


def test_the_slots_are_never_exceeded(client: Client, server: VoiceServer, make: Make):
    """A voice that the server knows goes on, and one that finds no slot is reported."""
    client.voices = [entry("bob"), entry("carol")]
    pusher = make(slots=2)
    pusher.run()
    client.voices = [entry("alice"), entry("bob"), entry("carol")]
    assert states(pusher) == {"bob@1": "unchanged", "carol@1": "unchanged", "alice@1": "missing"}
    client.voices = [entry("alice"), entry("carol")]
    assert states(pusher) == {"carol@1": "unchanged", "alice@1": "written"}
    assert server.names == {"alice@1", "carol@1"}


def test_a_new_version_finds_a_slot_when_the_grace_of_the_former_one_is_over(
    client: Client, server: VoiceServer, make: Make
):
    """The former version is served until then, because the new one would have to take its slot."""
    client.voices = [entry("alice")]
    pusher = make(slots=1)
    pusher.run()
    client.voices = [entry("alice", 2)]
    assert states(pusher) == {"alice@2": "kept"}
    assert "all 1 slots are taken" in reason(pusher)
    assert server.names == {"alice@1"}
    server.later = LATER
    assert states(pusher) == {"alice@2": "written"}
    assert server.names == {"alice@2"}


def test_a_slot_is_found_also_if_each_push_is_a_process_of_its_own(
    client: Client, server: VoiceServer, make: Make
):
    client.voices = [entry("alice")]
    make(slots=1).run()
    client.voices, client.changed_at = [entry("alice", 2)], time.time()
    assert states(make(slots=1)) == {"alice@2": "kept"}
    server.later = LATER
    assert states(make(slots=1)) == {"alice@2": "written"}
    assert server.names == {"alice@2"}


def test_a_former_version_is_kept_if_the_new_clip_cannot_be_had(
    client: Client, server: VoiceServer, make: Make
):
    client.voices = [entry("alice")]
    pusher = make(slots=1)
    pusher.run()
    client.voices = [entry("alice", 2)]
    client.faults["voice_alice@2"] = errors.DigestMismatch("damaged")
    pusher.run()
    server.later = LATER
    assert states(pusher) == {"alice@2": "kept"}
    assert server.names == {"alice@1"}


def test_a_clip_that_the_server_refuses_is_not_sent_again_at_once(
    client: Client, server: VoiceServer, make: Make
):
    """A clip has megabytes, and a poll comes every few seconds. The others are uploaded all the same."""
    client.voices = [entry("alice"), entry("bob", source="embedding")]
    client.seconds = 0.5
    pusher = make()
    assert states(pusher) == {"alice@1": "missing", "bob@1": "written"}
    assert "the server refuses it: Reference audio too short (0.5s)" in reason(pusher)
    assert server.count("POST") == 2
    server.later = pusher_module.REFUSED_SECONDS + 1
    client.seconds = 1.5
    assert states(pusher) == {"alice@1": "written", "bob@1": "unchanged"}


def test_the_limit_of_the_server_is_told(client: Client, server: VoiceServer, make: Make):
    """vLLM-Omni counts voices of others, too, so its limit may come before the slots are taken."""
    server.start(max_uploaded=1)
    client.voices = [entry("alice"), entry("bob")]
    pusher = make()
    assert states(pusher) == {"alice@1": "written", "bob@1": "missing"}
    assert "Uploaded voice limit reached (1)" in reason(pusher)


def test_a_clip_that_is_too_large_is_not_sent(client: Client, server: VoiceServer, make: Make):
    client.voices = [entry("alice")]
    client.seconds = 170.0
    assert "accepted: up to 10485760" in reason(make())
    assert server.count("POST") == 0


@pytest.mark.parametrize("error", [errors.VoiceDamaged, errors.VoiceUnreadable])
def test_a_clip_that_cannot_be_fetched_keeps_no_other_one_out(
    client: Client, server: VoiceServer, make: Make, error: type[SpeakerRegistryError]
):
    client.voices = [entry("alice"), entry("bob")]
    client.faults["voice_alice@1"] = error("its bytes cannot be read")
    assert states(make()) == {"alice@1": "missing", "bob@1": "written"}


@pytest.mark.parametrize("error", [errors.Unavailable("away"), errors.PermissionDenied("no audio:read")])
def test_a_registry_that_refuses_all_clips_ends_the_run(
    client: Client,
    server: VoiceServer,
    make: Make,
    error: SpeakerRegistryError,
    monkeypatch: pytest.MonkeyPatch,
):
    """What the server has stays unless it was deleted, and the next run goes on."""
    monkeypatch.setattr(pusher_module, "MAX_FAULTS", 2)
    client.voices = [entry("alice"), entry("bob")]
    pusher = make()
    pusher.run()
    client.voices = [entry("alice", 2), entry("bob", 2)]
    client.faults = {f"voice_{name}@2": error for name in ("alice", "bob")}
    client.deleted = {"voice_alice@1", "voice_bob@1"}
    with pytest.raises(type(error)):
        pusher.run()
    assert len(server.names) == (0 if isinstance(error, errors.Unavailable) else 1)
    client.faults.clear()
    assert states(pusher) == {"alice@2": "written", "bob@2": "written"}


NO_ANSWER = pytest.mark.parametrize(
    "error", [errors.Unavailable("503"), SpeakerRegistryError("500")], ids=["503", "500"]
)


@NO_ANSWER
def test_voices_without_an_answer_keep_no_other_one_out(
    client: Client, server: VoiceServer, make: Make, error: SpeakerRegistryError
):
    """The registry's store may be unable to read some objects. A process that pushes once would end at the
    same ones each time.
    """
    client.voices = [entry(name) for name in ("alice", "bob", "carol", "dora")]
    client.faults = {f"voice_{name}@1": error for name in ("alice", "bob", "carol")}
    report = make().run()
    assert [one.state for one in report.outcomes] == ["missing", "missing", "missing", "written"]
    assert isinstance(report.fault, errors.Unavailable)
    client.faults.clear()
    report = make().run()
    assert (report.count("unchanged"), report.count("written"), report.fault) == (1, 3, None)


def test_runs_that_end_early_do_not_all_end_at_the_same_voices(
    client: Client,
    server: VoiceServer,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    shuffled: Callable[[list[Any]], list[Any]],
):
    """If each push is a process of its own, none knows which voices failed before."""
    monkeypatch.setattr(pusher_module, "_shuffled", shuffled)
    monkeypatch.setattr(pusher_module, "MAX_FAULTS", 2)
    client.voices = [entry(name) for name in ("alice", "bob", "carol", "dora")]
    client.faults = {f"voice_{name}@1": errors.Unavailable("no answer") for name in ("alice", "bob", "carol")}
    for _ in range(100):
        with pytest.raises(errors.Unavailable):
            make().run()
        if server.names:
            break
    assert server.names == {"dora@1"}


def test_a_voice_that_the_server_has_no_answer_for_keeps_no_other_one_out(
    client: Client, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """A server may answer 503 for one voice only."""
    upload = SpeechServer.upload

    def fail_for_alice(self: SpeechServer, parts: Any) -> None:
        if parts["name"][1] == "alice@1":
            raise errors.Unavailable("http://tts.test answers 503: busy")
        upload(self, parts)

    monkeypatch.setattr(SpeechServer, "upload", fail_for_alice)
    client.voices = [entry("alice"), entry("bob")]
    report = make().run()
    assert [one.state for one in report.outcomes] == ["missing", "written"]
    assert str(report.fault) == "http://tts.test answers 503: busy"


def without_answer_about(name: str, monkeypatch: pytest.MonkeyPatch, *, done: bool = False) -> None:
    """Let the server have no answer to uploads and deletions of a voice, although it may do them."""
    upload, delete = SpeechServer.upload, SpeechServer.delete

    def upload_unless(self: SpeechServer, parts: Any) -> None:
        if parts["name"][1] != name or done:
            upload(self, parts)
        if parts["name"][1] == name:
            raise errors.Unavailable("busy")

    def delete_unless(self: SpeechServer, of: str) -> None:
        if of != name or done:
            delete(self, of)
        if of == name:
            raise errors.Unavailable("busy")

    monkeypatch.setattr(SpeechServer, "upload", upload_unless)
    monkeypatch.setattr(SpeechServer, "delete", delete_unless)


def test_a_deletion_without_an_answer_keeps_no_other_voice_in_or_out(
    client: Client, server: VoiceServer, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """A server may be unable to delete one voice. A run would end there each time, before all uploads."""
    client.voices = [entry("alice"), entry("bob")]
    make().run()
    client.voices = [entry("carol")]
    with monkeypatch.context() as patch:
        without_answer_about("alice@1", patch)
        report = make().run()
    assert (report.removed, report.count("written"), str(report.fault)) == (1, 1, "busy")
    assert server.names == {"alice@1", "carol@1"}
    assert make().run().removed == 1
    assert server.names == {"carol@1"}


@pytest.mark.parametrize("takes", ["the slot", "the name"])
def test_a_voice_whose_former_version_cannot_be_deleted_keeps_no_other_one_out(
    client: Client, server: VoiceServer, make: Make, monkeypatch: pytest.MonkeyPatch, takes: str
):
    """The former version is still served."""
    client.voices = [entry("alice"), entry("bob")]
    pusher = make(slots=2)
    pusher.run()
    if takes == "the slot":
        client.voices = [entry("alice", 2), entry("bob")]
        pusher.run()
        server.later = LATER
    else:
        client.voices = [entry("alice", version_id="other"), entry("bob")]
    client.voices[1] = entry("bob", version_id="other")
    without_answer_about("alice@1", monkeypatch)
    report = pusher.run()
    assert [one.state for one in report.outcomes] == ["kept", "written"]
    assert report.outcomes[0].reason == "the former version could not be deleted"
    assert str(report.fault) == "busy"
    assert server.names == {"alice@1", "bob@1"}


def test_an_upload_whose_answer_was_lost_takes_its_slot(
    client: Client, server: VoiceServer, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """The server has the voice, so another one would exceed the slots. The push has done all it could."""
    client.voices = [entry("alice"), entry("bob")]
    with monkeypatch.context() as patch:
        without_answer_about("alice@1", patch, done=True)
        report = make(slots=1).run()
    assert [one.state for one in report.outcomes] == ["written", "missing"]
    assert report.fault is None
    assert server.names == {"alice@1"}
    assert states(make(slots=1)) == {"alice@1": "unchanged", "bob@1": "missing"}


def test_a_registry_that_goes_away_ends_the_run(client: Client, make: Make, monkeypatch: pytest.MonkeyPatch):
    """Each clip could take a minute."""
    asked = []

    def go_away(reference: str) -> ReferenceAudio:
        asked.append(reference)
        client.away = True
        raise errors.Unavailable("no answer")

    monkeypatch.setattr(client, "samples", go_away)
    client.voices = [entry("alice"), entry("bob")]
    with pytest.raises(errors.Unavailable, match="away"):
        make().run()
    assert len(asked) == 1


def test_a_registry_that_asks_to_wait_for_one_voice_is_asked_a_few_times(
    client: Client, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """Its store may be unable to read this one."""
    samples, asked = client.samples, []

    def busy_with_alice(reference: str) -> ReferenceAudio:
        if reference != "voice_alice@1":
            return samples(reference)
        asked.append(reference)
        raise errors.Unavailable("busy", retry_after_seconds=0.0)

    monkeypatch.setattr(client, "samples", busy_with_alice)
    client.voices = [entry("alice"), entry("bob")]
    assert states(make()) == {"alice@1": "missing", "bob@1": "written"}
    assert len(asked) == 4


@NO_ANSWER
def test_a_history_without_an_answer_keeps_the_replaced_version(
    client: Client,
    server: VoiceServer,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    error: SpeakerRegistryError,
):
    """Nothing tells when it was replaced. The other voices are pushed all the same."""
    for version in (1, 2):
        client.voices = [entry("alice", version)]
        make().run()
    server.later = LATER

    def fail(*_: object, **__: object) -> None:
        raise error

    client.voices = [entry("alice", 1), entry("bob")]
    with monkeypatch.context() as patch:
        patch.setattr(client, "history", fail)
        report = make().run()
    assert [one.state for one in report.outcomes] == ["unchanged", "written"]
    assert isinstance(report.fault, errors.Unavailable)
    assert server.names == {"alice@1", "alice@2", "bob@1"}
    make().run()
    assert server.names == {"alice@1", "bob@1"}


def test_histories_without_an_answer_end_no_run(
    client: Client, server: VoiceServer, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """Many voices may have been rolled back. New ones are uploaded, and the wait for histories is limited."""
    names = ("alice", "bob", "carol")
    for version in (1, 2):
        client.voices = [entry(name, version) for name in names]
        make().run()
    asked = []

    def fail(voice_id: str, **_: object) -> None:
        asked.append(voice_id)
        raise errors.Unavailable("no answer")

    client.voices = [*(entry(name) for name in names), entry("dora")]
    monkeypatch.setattr(client, "history", fail)
    monkeypatch.setattr(pusher_module, "MAX_FAULTS", 2)
    report = make().run()
    assert (report.count("unchanged"), report.count("written"), len(asked)) == (3, 1, 2)
    assert str(report.fault) == "no answer"


def test_what_another_pusher_uploads_during_a_run_is_not_deleted(
    client: Client, server: VoiceServer, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """The other one may have asked the registry later."""
    client.voices = [entry("alice")]
    ahead = Client()
    ahead.voices = [entry("alice"), entry("carol")]
    manifest = client.manifest

    def overtaken(profile: str, known: Manifest | None = None) -> Manifest:
        found = manifest(profile, known)
        make(ahead).run()
        client.voices = ahead.voices  # which the next answer tells
        return found

    make().run()
    monkeypatch.setattr(client, "manifest", overtaken)
    make().run()
    assert server.names == {"alice@1", "carol@1"}


def test_two_pushers_at_once_share_the_work(
    client: Client, server: VoiceServer, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """Each would upload everything again that the other one has uploaded since its own last list."""
    client.voices = [entry(name) for name in ("alice", "bob", "carol")]
    samples = client.samples

    def overtaken(reference: str) -> ReferenceAudio:
        monkeypatch.setattr(client, "samples", samples)
        make().run()
        server.later += pusher_module.LIST_SECONDS
        return samples(reference)

    monkeypatch.setattr(client, "samples", overtaken)
    assert states(make()) == {"alice@1": "written", "bob@1": "unchanged", "carol@1": "unchanged"}
    assert server.count("POST") == 4, "alice twice, because both were at her at the same time"


@pytest.fixture
def meanwhile(client: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Return a function that lets something happen during the next upload, which takes long."""

    def let(happen: Callable[[], None]) -> None:
        samples = client.samples

        def slow(reference: str) -> ReferenceAudio:
            monkeypatch.setattr(client, "samples", samples)
            happen()
            return samples(reference)

        monkeypatch.setattr(client, "samples", slow)

    monkeypatch.setattr(pusher_module, "LOOK_SECONDS", 0.0)
    return let


def test_what_is_deleted_during_many_uploads_does_not_stay_until_the_last_one(
    client: Client, server: VoiceServer, make: Make, meanwhile: Callable[[Callable[[], None]], None]
):
    """A thousand uploads may take an hour. What has another version by then gets that one."""
    client.voices = [entry("alice")]
    make().run()
    client.voices = [entry(name) for name in ("alice", "bob", "carol", "dora", "eve")]
    meanwhile(partial(setattr, client, "voices", [entry("bob"), entry("dora", 2), entry("eve")]))
    report = make().run()
    assert server.names == {"bob@1", "dora@2", "eve@1"}
    assert (report.removed, report.count("written")) == (1, 3)


def test_a_version_that_is_current_again_during_a_run_keeps_its_slot(
    client: Client, server: VoiceServer, make: Make, meanwhile: Callable[[Callable[[], None]], None]
):
    """It could have left for the slot of another voice when the run began."""
    client.voices = [entry("alice")]
    pusher = make(slots=1)
    pusher.run()
    client.voices = [entry("alice", 2)]
    pusher.run()
    server.later = LATER
    client.faults["voice_alice@2"] = errors.AudioNotFound("lost")
    client.voices = [entry("alice", 2), entry("bob")]
    meanwhile(partial(setattr, client, "voices", [entry("alice"), entry("bob")]))
    assert states(pusher) == {"alice@2": "kept", "bob@1": "missing"}
    assert server.names == {"alice@1"}


def test_a_deletion_without_an_answer_is_tried_once_in_a_run(
    client: Client, server: VoiceServer, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """A voice that the server cannot delete would end each run that has many uploads."""
    monkeypatch.setattr(pusher_module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pusher_module, "MAX_FAULTS", 2)
    client.voices = [entry("alice")]
    make().run()
    client.voices = [entry("bob"), entry("carol")]
    without_answer_about("alice@1", monkeypatch)
    assert make().run().count("written") == 2


def test_a_registry_that_is_another_one_during_a_run_deletes_nothing(
    client: Client, server: VoiceServer, make: Make, meanwhile: Callable[[Callable[[], None]], None]
):
    """The name of the registry may lead elsewhere at any time."""
    client.voices = [entry("alice"), entry("bob")]

    def replace() -> None:
        client.registry, client.voices = OTHER, []

    meanwhile(replace)
    with pytest.raises(errors.InvalidRequest, match="they stay as they are"):
        make().run()
    assert server.names == {"alice@1"}


@pytest.fixture
def refusing(server: VoiceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server refuse a second upload of a name, and all uploads that are called dora."""
    upload = SpeechServer.upload

    def upload_unless(self: SpeechServer, parts: Any) -> None:
        name = parts["name"][1]
        if name in server.names or name.startswith("dora"):
            raise UploadRefused(f"{name} already exists")
        upload(self, parts)

    monkeypatch.setattr(SpeechServer, "upload", upload_unless)


@pytest.mark.usefixtures("refusing")
def test_a_voice_that_another_pusher_was_first_to_upload_is_there(
    client: Client, server: VoiceServer, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """The server refuses the second upload, and has the very version that was to be uploaded."""
    client.voices = [entry("alice"), entry("bob")]
    samples = client.samples

    def overtaken(reference: str) -> ReferenceAudio:
        monkeypatch.setattr(client, "samples", samples)
        make().run()
        return samples(reference)

    monkeypatch.setattr(client, "samples", overtaken)
    assert states(make()) == {"alice@1": "unchanged", "bob@1": "unchanged"}
    assert server.count("POST") == 2


@pytest.mark.usefixtures("refusing")
def test_a_server_that_refuses_all_voices_is_not_asked_about_each(
    client: Client, server: VoiceServer, make: Make
):
    client.voices = [entry(f"dora{number}") for number in range(9)]
    assert make().run().count("missing") == 9
    assert server.count("GET") == 4, "one list at first, and one after each of the first three refusals"


def test_a_push_that_has_left_something_to_the_next_run_ends_with_its_error():
    """A cron job says so."""
    report = Report(outcomes=(), removed=0, fault=errors.Unavailable("no answer"))
    arguments = Namespace(server="http://tts.test", profile=QWEN, watch=False)
    output = carry_out(lambda: report, 30, arguments, partial(push_command._output, arguments))
    assert output.status == 3
    assert output.warnings == ["something was left to the next run, because of this: no answer"]


def test_while_the_registry_is_away_nothing_is_deleted(client: Client, server: VoiceServer, make: Make):
    client.voices = [entry("alice")]
    pusher = make()
    pusher.run()
    client.away = True
    with pytest.raises(errors.Unavailable):
        pusher.run()
    assert server.names == {"alice@1"}


def test_several_api_processes_are_an_error_that_ends_the_push(
    client: Client, server: VoiceServer, make: Make
):
    """vLLM-Omni takes uploads only with one API process, and no waiting mends that."""
    server.processes = 2
    client.voices = [entry("alice")]
    with pytest.raises(errors.InvalidRequest, match="answers 409: Runtime voice upload is not supported"):
        make().run()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, errors.PermissionDenied),
        (404, errors.InvalidRequest),
        (302, errors.InvalidRequest),
        (408, errors.Unavailable),
        (429, errors.Unavailable),
        (503, errors.Unavailable),
    ],
)
def test_what_a_server_answers_says_whether_it_helps_to_wait(
    client: Client, server: VoiceServer, make: Make, status: int, error: type[SpeakerRegistryError]
):
    """A watching pusher goes on after `Unavailable`, and ends after the others."""
    server.fault = status
    with pytest.raises(error, match=rf"http://tts\.test answers {status}: no"):
        make().run()


def test_sglang_omni_gets_names_that_it_accepts(client: Client, server: VoiceServer, make: Make):
    """SGLang-Omni takes letters, digits, dots, lines and underscores only."""
    client.voices = [entry("Alice", 2), entry("Über uns")]
    pusher = make(kind="sglang-omni")
    assert states(pusher) == {"Alice@2": "written", "Über uns@1": "missing"}
    assert server.names == {"alice.v2"}
    assert "accepts no name such as '\\xfcber uns.v1'" in reason(pusher)
