"""The manifest of vLLM-Omni's `custom_voice_dir`, as `sync` writes it."""

import json
from typing import Any

import numpy as np
import pytest

from speaker_registry import RegistryClient
from speaker_registry.artifact import Manifest, encode
from speaker_registry.syncing.custom_voices import CustomVoices
from speaker_registry.syncing.folder import FileName

LATENTS = np.ones((19, 4, 64), np.float32)
TENSORS = {
    "qwen3_tts": {"speaker_embedding": np.ones(1024, np.float32), "ref_code": np.ones((38, 16), np.int32)},
    "voxcpm2": {"ref_audio_feat": LATENTS, "audio_feat": LATENTS},
}


def artifact(model_type: str, *, text: str | None, leave_out: str = "", version: int = 3) -> bytes:
    manifest = Manifest(
        profile="p",
        model_type=model_type,
        fingerprint="f",
        voice="Émile",
        version=version,
        version_id="v",
        created_at=1,
        source="audio",
        ref_text=text,
    )
    tensors = {name: tensor for name, tensor in TENSORS[model_type].items() if name != leave_out}
    return encode(tensors, manifest)


def manifest_of(model_type: str, *files: bytes) -> dict[str, Any]:
    with RegistryClient("http://nowhere") as client:
        form = CustomVoices(client, "p", model_type)
        by_name = {FileName("0" * 32, number, "1" * 64): data for number, data in enumerate(files)}
        found: dict[str, Any] = json.loads(form.index(list(by_name), by_name.__getitem__))
    return found


@pytest.mark.parametrize(
    ("model_type", "text", "leave_out", "expected"),
    [
        ("qwen3_tts", "Hi.", "", {"mode": "icl", "ref_text": "Hi."}),
        ("qwen3_tts", "Hi.", "ref_code", {"mode": "xvec"}),
        ("qwen3_tts", None, "", {"mode": "xvec"}),
        ("voxcpm2", "Hi.", "", {"mode": "ref_continuation", "prompt_text": "Hi."}),
        ("voxcpm2", "Hi.", "audio_feat", {"mode": "reference"}),
        ("voxcpm2", None, "", {"mode": "reference"}),
    ],
)
def test_the_mode_follows_from_transcript_and_tensors(
    model_type: str, text: str | None, leave_out: str, expected: dict[str, str]
):
    """A server fails each request for a voice in a mode that lacks its transcript or its tensor."""
    entry = manifest_of(model_type, artifact(model_type, text=text, leave_out=leave_out))["voices"]["Émile@3"]
    assert entry == {
        "name": "Émile@3",
        "file": f"{'0' * 32}-000000000000-{'1' * 64}.safetensors",
        **expected,
    }


@pytest.mark.parametrize("damage", ["", "}", '{"voices": [1]}', '{"voices": {"a": {}}}'])
def test_a_manifest_loses_the_voices_whose_files_are_gone(damage: str):
    """A manifest that cannot be read may name deleted voices as well, so nothing of it stays."""
    entry = {"file": "alice.safetensors", "name": "alice@1"}
    voices = {"alice@1": entry, "bob@1": {**entry, "file": "bob.safetensors"}}
    manifest = damage or json.dumps({"schema_version": 1, "model_type": "qwen3_tts", "voices": voices})
    with RegistryClient("http://nowhere") as client:
        form = CustomVoices(client, "p", "qwen3_tts")
        found = json.loads(form.without_removed(manifest.encode(), {"alice.safetensors"}.__contains__))
    assert found == {
        "schema_version": 1,
        "model_type": "qwen3_tts",
        "voices": {} if damage else {"alice@1": entry},
    }


def test_a_damaged_manifest_makes_no_file_be_read_again():
    """A sync removes deleted voices from the manifest first, and a folder may have thousands of files."""
    name, read = FileName("0" * 32, 0, "1" * 64), []

    def read_once(of: FileName) -> bytes:
        read.append(of)
        return artifact("qwen3_tts", text=None)

    with RegistryClient("http://nowhere") as client:
        form = CustomVoices(client, "p", "qwen3_tts")
        for _ in range(2):
            form.without_removed(b"}", lambda _: True)
            assert json.loads(form.index([name], read_once))["voices"]
    assert len(read) == 1


def test_each_version_is_a_voice_of_its_own():
    """vLLM-Omni caches these voices without a time, so `alice@4` must be another voice than `alice@3`."""
    files = [artifact("qwen3_tts", text=None, version=version) for version in (3, 4)]
    found = manifest_of("qwen3_tts", *files)
    assert (found["schema_version"], found["model_type"]) == (1, "qwen3_tts")
    assert list(found["voices"]) == ["Émile@3", "Émile@4"]
