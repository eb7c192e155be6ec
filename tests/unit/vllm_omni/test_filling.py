"""Tests of the plugin's part for workers, with vLLM-Omni's own speaker cache."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import Artifact, Manifest, encode
from speaker_registry.errors import ArtifactNotReady, SpeakerRegistryError, Unavailable
from speaker_registry.manifests import ManifestEntry
from speaker_registry.vllm_omni.filling import CacheFiller
from speaker_registry.vllm_omni.slots import CACHING_MODEL_TYPES
from tests.unit.sdk.fake_registry import FINGERPRINT
from tests.unit.sdk.test_following import entry
from tests.vllm_omni_readers import WHEEL, readers

SIZES = {"T": 8, "2T": 16}
DTYPES = {"F32": np.float32, "I32": np.int32, "I64": np.int64}
MODELS = WHEEL / "vllm_omni/model_executor/models"
READERS = {
    "qwen3_tts": (
        MODELS / "qwen3_tts/prompt_embeds_builder.py",
        {"ref_code", "ref_spk_embedding", "icl_mode"},
    ),
    "fish_speech": (MODELS / "fish_speech/fish_speech_slow_ar.py", {"ref_codes_fq"}),
    "audio8_tts": (MODELS / "audio8_tts/audio8_tts_slow_ar.py", {"ref_codes_fq"}),
    "cosyvoice3": (
        MODELS / "cosyvoice3/cosyvoice3.py",
        {"speech_feat", "speech_token", "speech_token_len", "embedding"},
    ),
    "voxcpm2": (MODELS / "voxcpm2/voxcpm2_talker.py", {"ref_audio_feat"}),
    "ming_tts": (MODELS / "ming_tts/speaker_extractor.py", {"speaker_embedding"}),
    "omnivoice": (
        WHEEL / "vllm_omni/diffusion/models/omnivoice/pipeline_omnivoice.py",
        {"ref_audio_tokens"},
    ),
}
"""Model type -> the file of vLLM-Omni that reads the speaker cache, and what it reads of a value."""


def tensors_of(profile: str) -> dict[str, np.ndarray]:
    specs = BUILT_IN[profile].tensors
    shapes = {name: [SIZES.get(str(size), size) for size in spec.shape] for name, spec in specs.items()}
    return {name: np.ones(shapes[name], DTYPES[spec.dtype]) for name, spec in specs.items()}


class Client:
    """Gives an artifact of the profile for every reference, whose numbers are those of the version."""

    def __init__(self, profile: str) -> None:
        self.profile = profile
        self.tensors = tensors_of(profile)
        self.fault: SpeakerRegistryError | None = None
        self.fetched: list[str] = []

    def fetch(self, reference: str, profile: str) -> Artifact:
        assert profile == self.profile
        if self.fault is not None:
            raise self.fault
        self.fetched.append(reference)
        version = int(reference.rpartition("@")[2])
        manifest = Manifest(
            profile=profile,
            model_type=BUILT_IN[profile].model_type,
            fingerprint=FINGERPRINT,
            voice="alice",
            version=version,
            version_id=f"v{version}",
            created_at=100 + version,
            source="audio",
        )
        return Artifact.parse(encode({name: one * version for name, one in self.tensors.items()}, manifest))


def ready(name: str, version: int = 1, **facts: Any) -> ManifestEntry:
    return entry(name, version, digest=f"sha256:{version}", size=1000, ref_text="Hi.", **facts)


def by_id(*entries: ManifestEntry) -> Mapping[str, ManifestEntry]:
    return {one.voice_id: one for one in entries}


@pytest.fixture
def cache() -> Any:
    return readers().speaker_cache.SpeakerEmbeddingCache()


def filler(cache: Any, client: Client) -> CacheFiller:
    return CacheFiller(client, client.profile, cache)  # type: ignore[arg-type]


def apply(this: CacheFiller, voices: Mapping[str, ManifestEntry]) -> None:
    this.clear_others(voices)
    for one in voices.values():
        this.fill(one)


def slot(cache: Any, name: str, model_type: str, created_at: int) -> dict[str, Any] | None:
    found: dict[str, Any] | None = cache.get(cache.make_cache_key(name, model_type, created_at))
    return found


PROFILES = sorted(name for name, one in BUILT_IN.items() if one.model_type in CACHING_MODEL_TYPES)


def test_every_profile_with_a_slot_is_covered():
    assert {BUILT_IN[name].model_type for name in PROFILES} == READERS.keys() == CACHING_MODEL_TYPES


@pytest.mark.parametrize("profile", PROFILES)
def test_each_model_finds_the_voice_under_its_own_key(cache: Any, profile: str):
    """vLLM-Omni silently encodes the clip again if the key or the name of a tensor is another one."""
    model_type = BUILT_IN[profile].model_type
    apply(filler(cache, Client(profile)), by_id(ready("Alice")))
    source, keys = READERS[model_type]
    text = source.read_text()
    cached_as = {"qwen3_tts": "qwen3_tts_icl"}.get(model_type, model_type)
    assert f'model_type="{model_type}"' in text or f'model_type=f"{model_type}_' in text
    assert all(f'"{key}"' in text for key in keys)
    for name in ("alice", "alice@1"):
        value = slot(cache, name, cached_as, 101)
        assert value is not None
        assert keys <= value.keys()
        assert "mode" not in value  # which VoxCPM2 would take for a continuation
        for key, tensor in tensors_of(profile).items():
            if key in value:
                assert np.array_equal(value[key].numpy(), tensor)


def test_qwen3_tts_has_a_slot_for_the_speaker_embedding_alone(cache: Any):
    """A request may turn the codes off, and a voice without a transcript has no use for them."""
    apply(filler(cache, Client("qwen3-tts-0.6b")), by_id(ready("alice"), entry("bob", digest="x", size=1)))
    for name in ("alice", "bob"):
        value = slot(cache, name, "qwen3_tts_xvec", 101)
        assert value is not None
        assert (value["ref_code"], value["icl_mode"]) == (None, False)
        assert isinstance(value["ref_spk_embedding"], torch.Tensor)
    assert slot(cache, "bob", "qwen3_tts_icl", 101) is None


def test_a_new_version_never_answers_for_the_former_one(cache: Any):
    """The number of the version is in the name and its time in the key: the two can never be mixed up."""
    client = Client("omnivoice")
    this = filler(cache, client)
    apply(this, by_id(ready("alice")))
    apply(this, by_id(ready("alice", 2)))
    value = slot(cache, "alice@2", "omnivoice", 102)
    assert value is not None
    assert value["ref_audio_tokens"].max() == 2
    assert slot(cache, "alice", "omnivoice", 102) is value
    assert slot(cache, "alice", "omnivoice", 101) is None
    apply(this, by_id(ready("alice", 2)))
    assert slot(cache, "alice@1", "omnivoice", 101) is None
    assert client.fetched == ["voice_alice@1", "voice_alice@2"]


def test_what_is_deleted_is_cleared_and_stays_so(cache: Any):
    """A request that began before the deletion may put what it computed into the cache after it."""
    this = filler(cache, Client("omnivoice"))
    apply(this, by_id(ready("alice"), ready("bob")))
    apply(this, by_id(ready("bob")))
    late = cache.make_cache_key("alice@1", "omnivoice", 101)
    assert {key[1] for key in cache._cache} == {"bob", "bob@1"}
    cache.put(late, {"ref_audio_tokens": torch.ones(1)})
    apply(this, by_id(ready("bob")))
    assert cache.get(late) is None


def test_a_version_that_came_and_went_between_two_looks_is_cleared(cache: Any):
    """Another process may have offered it meanwhile, and the server has encoded it for a request."""
    this = filler(cache, Client("omnivoice"))
    apply(this, by_id(ready("alice")))
    cache.put(cache.make_cache_key("alice@2", "omnivoice", 102), {"ref_audio_tokens": torch.ones(1)})
    apply(this, by_id(ready("alice", 3)))
    assert {key[1:] for key in cache._cache} == {("alice", 103), ("alice@3", 103)}


def test_a_name_that_means_another_voice_keeps_nothing_of_the_former_one(cache: Any):
    """A voice may be deleted and registered again between two looks."""
    this = filler(cache, Client("omnivoice"))
    apply(this, by_id(ready("alice")))
    apply(this, by_id(ready("alice", 2, voice_id="voice_other")))
    assert {key[1:] for key in cache._cache} == {("alice", 102), ("alice@2", 102)}


@pytest.mark.parametrize("created_at", [102, 107])
def test_a_number_that_was_given_again_keeps_nothing_of_the_lost_version(cache: Any, created_at: int):
    """It is given again after the registry was restored from a backup. Nobody asked for the lost clip."""
    client = Client("omnivoice")
    this = filler(cache, client)
    apply(this, by_id(ready("alice", 2)))
    client.tensors = {name: one * 5 for name, one in client.tensors.items()}
    voices = by_id(ready("alice", 2, version_id="other", created_at=created_at))
    this.clear_others(voices)
    assert not cache._cache
    apply(this, voices)
    late = cache.make_cache_key("alice@2", "omnivoice", 101)
    cache.put(late, {"ref_audio_tokens": torch.ones(1)})
    apply(this, voices)
    assert {key[1:] for key in cache._cache} == {("alice", created_at), ("alice@2", created_at)}
    assert {int(value["ref_audio_tokens"].max()) for value in cache._cache.values()} == {10}
    assert client.fetched == ["voice_alice@2"] * 2


@pytest.mark.parametrize("name", ["alice", "alice@1", "alice@2"])
def test_what_a_request_made_of_a_voice_that_was_withdrawn_meanwhile_is_cleared(cache: Any, name: str):
    """vLLM-Omni looks the creation time up after it has read the clip, and takes 0 if the voice is gone."""
    this = filler(cache, Client("omnivoice"))
    apply(this, by_id(ready("alice")))
    cache.put(cache.make_cache_key(name, "omnivoice", 0), {"ref_audio_tokens": torch.ones(1)})
    apply(this, by_id(ready("alice", 2, voice_id="voice_other")))
    assert {key[1:] for key in cache._cache} == {("alice", 102), ("alice@2", 102)}
    cache.put(cache.make_cache_key(name, "omnivoice", 0), {"ref_audio_tokens": torch.ones(1)})
    apply(this, {})
    assert not cache._cache


def test_entries_of_voices_of_the_server_itself_stay(cache: Any):
    """vLLM-Omni fills those of its custom voices once, when it loads the model, and never again."""
    this = filler(cache, Client("omnivoice"))
    own = [("house@2", 0), ("narrator", 0), ("alice", 0), ("alice", 900), ("guest@3", 900)]
    for name, created_at in own:
        cache.put(cache.make_cache_key(name, "omnivoice", created_at), {"ref_audio_tokens": torch.ones(1)})
    for voices in (by_id(ready("alice")), by_id(ready("alice", 2)), by_id()):
        this.clear_others(voices, own={"alice", "guest@3"})
        for one in voices.values():
            this.fill(one)
    assert sorted(key[1:] for key in cache._cache) == sorted(own)


def test_a_name_that_an_upload_to_the_server_has_is_not_filled(cache: Any):
    """The upload may be of the same second, and would be heard with the registry's tensors."""
    this = filler(cache, Client("omnivoice"))
    for own in ({"alice"}, {"alice@1"}, set[str]()):
        cache.clear()
        this.clear_others(by_id(ready("alice")), own)
        this.fill(ready("alice"))
        assert {key[1] for key in cache._cache} == {"alice", "alice@1"} - own


@pytest.mark.parametrize("voices", [by_id(), by_id(ready("alice", 2))])
def test_what_the_server_made_of_a_bare_name_leaves_with_its_version(
    cache: Any, voices: Mapping[str, ManifestEntry]
):
    """The server uses the bare name itself if an upload hides the version."""
    this = filler(cache, Client("omnivoice"))
    this.clear_others(by_id(ready("alice")))
    for created_at in (101, 102):
        cache.put(cache.make_cache_key("alice", "omnivoice", created_at), {"ref_audio_tokens": torch.ones(1)})
    this.clear_others(voices)
    assert [key[1:] for key in cache._cache] == [("alice", one.created_at) for one in voices.values()]


def test_an_unchanged_voice_is_not_fetched_again(cache: Any):
    client = Client("omnivoice")
    this = filler(cache, client)
    for _ in range(3):
        apply(this, by_id(ready("alice"), entry("pending", state="pending")))
    assert client.fetched == ["voice_alice@1"]


def test_one_voice_that_cannot_be_fetched_keeps_no_other_one_out(
    cache: Any, caplog: pytest.LogCaptureFixture
):
    client = Client("omnivoice")
    this = filler(cache, client)
    for reason in ("not yet", "not yet", "failed", "failed"):
        client.fault = ArtifactNotReady(reason)
        apply(this, by_id(ready("alice")))
    client.fault = None
    apply(this, by_id(ready("alice"), ready("bob")))
    assert client.fetched == ["voice_alice@1", "voice_bob@1"]
    assert [text.rpartition(": ")[2] for text in caplog.messages] == ["not yet", "failed"]


def test_an_artifact_with_other_tensors_is_left_out_alone(cache: Any, caplog: pytest.LogCaptureFixture):
    """A broken registry must not keep the other voices out, nor bring unknown tensors into a server."""
    client = Client("omnivoice")
    this = filler(cache, client)
    client.tensors = {"weights": np.ones(3, np.float32)}
    apply(this, by_id(ready("alice")))
    client.tensors = tensors_of("omnivoice") | client.tensors
    apply(this, by_id(ready("bob")))
    assert "has no tensor 'ref_audio_tokens'; it has ['weights']" in caplog.text
    assert [value.keys() for value in cache._cache.values()] == [{"ref_audio_tokens"}] * 2
    assert {key[1] for key in cache._cache} == {"bob", "bob@1"}


def test_while_the_registry_is_away_the_cache_keeps_what_it_has(cache: Any):
    client = Client("omnivoice")
    this = filler(cache, client)
    apply(this, by_id(ready("alice")))
    client.fault = Unavailable("away")
    with pytest.raises(Unavailable):
        apply(this, by_id(ready("alice"), ready("bob")))
    assert slot(cache, "alice@1", "omnivoice", 101) is not None


def test_voices_do_not_displace_each_other(caplog: pytest.LogCaptureFixture):
    """A cache that is too small would otherwise be filled anew at every look."""
    small = readers().speaker_cache.SpeakerEmbeddingCache(max_bytes=4 * 1024)
    client = Client("omnivoice")
    this = filler(small, client)
    voices = by_id(*(ready(f"voice-{number}") for number in range(10)))
    for _ in range(3):
        apply(this, voices)
    assert 0 < len(client.fetched) < 10
    assert [one for one in caplog.messages if "full" in one] == [
        "The speaker cache is full; further voices are encoded at their first request"
    ]


@pytest.mark.parametrize(("size", "heard"), [(512, {3}), (600, set())])
def test_a_full_cache_does_not_keep_an_artifact_that_was_replaced(size: int, heard: set[int]):
    """One that is no larger takes its place. A larger one leaves the voice to be encoded, as others are."""
    small = readers().speaker_cache.SpeakerEmbeddingCache(max_bytes=1200)
    client = Client("omnivoice")
    this = filler(small, client)
    apply(this, by_id(ready("alice").model_copy(update={"size": 512})))
    assert small.stats()["memory_bytes"] == 2 * 512
    client.tensors = {name: one * 3 for name, one in client.tensors.items()}
    for _ in range(2):
        apply(this, by_id(ready("alice").model_copy(update={"size": size, "digest": "sha256:other"})))
        assert {int(value["ref_audio_tokens"].max()) for value in small._cache.values()} == heard


def test_a_model_without_a_speaker_cache_needs_none(cache: Any):
    """Higgs-Audio's servers encode each clip themselves."""
    apply(filler(cache, Client("higgs-audio-v2")), by_id(ready("alice")))
    assert not cache._cache
