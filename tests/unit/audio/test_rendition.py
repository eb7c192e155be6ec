"""The stored form of a clip: what is written is read back, and nothing else is."""

import json

import numpy as np
import pytest
import safetensors.numpy

from services.shared.audio import ReferenceAudio
from speaker_registry.errors import InvalidAudio
from tests.unit.audio import clips

CLIP = ReferenceAudio(clips.tone(1.0, 8000)[:, 0], 8000)


def stored(tensors: dict[str, np.ndarray], **metadata: object) -> bytes:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    return bytes(safetensors.numpy.save(tensors, metadata=texts or None))


def padded(data: bytes, spaces: int) -> bytes:
    """safetensors itself allows it."""
    size = int.from_bytes(data[:8], "little")
    return (size + spaces).to_bytes(8, "little") + data[8 : 8 + size] + b" " * spaces + data[8 + size :]


MANIFEST = {"sample_rate": 8000, "schema": 1}
AUDIO = {"audio": CLIP.samples}


def test_a_clip_is_read_back_as_it_was_written():
    """Workers extract from what the API has stored, not from what was uploaded."""
    read = ReferenceAudio.from_bytes(CLIP.to_bytes())
    assert np.array_equal(read.samples, CLIP.samples)
    assert (read.sample_rate, read.seconds) == (8000, 1.0)


def test_the_same_clip_always_gives_the_same_bytes():
    """The blob is named by the hash of its bytes: other bytes would be another blob."""
    again = ReferenceAudio(CLIP.samples.copy(), 8000)
    assert len({clip.to_bytes() for clip in (CLIP, again) for _ in range(20)}) == 1


def test_the_bytes_are_a_safetensors_file_that_anyone_can_read():
    """A tenant that leaves the registry takes its clips along."""
    assert safetensors.numpy.load(CLIP.to_bytes())["audio"].tolist() == CLIP.samples.tolist()
    header = json.loads(CLIP.to_bytes()[8 : 8 + int.from_bytes(CLIP.to_bytes()[:8], "little")])
    assert header["__metadata__"] == {"manifest": '{"sample_rate":8000,"schema":1}'}


@pytest.mark.parametrize(
    "data",
    {
        "nothing": b"",
        "a wav": clips.wav(),
        "cut off": CLIP.to_bytes()[:-1],
        "something after it": CLIP.to_bytes() + b"\0",
        "a header of 2**63 bytes": (2**63).to_bytes(8, "little") + CLIP.to_bytes()[8:],
        "a header that is deep": (500).to_bytes(8, "little") + b"[" * 500,
        "a header that is a list": (2).to_bytes(8, "little") + b"[]",
        "a long header": padded(CLIP.to_bytes(), 1000),
        "no manifest": stored(AUDIO),
        "a manifest that is no JSON": stored(AUDIO, manifest="{"),
        "a manifest that is a list": stored(AUDIO, manifest=[8000, 1]),
        "no rate": stored(AUDIO, manifest={"schema": 1}),
        "a rate of 0": stored(AUDIO, manifest=MANIFEST | {"sample_rate": 0}),
        "a rate that is true": stored(AUDIO, manifest=MANIFEST | {"sample_rate": True}),
        "a rate that is no integer": stored(AUDIO, manifest=MANIFEST | {"sample_rate": 8000.5}),
        "another schema": stored(AUDIO, manifest=MANIFEST | {"schema": 2}),
        "one more key": stored(AUDIO, manifest=MANIFEST | {"name": "alice"}),
        "one more header key": stored(AUDIO, manifest=MANIFEST, name="alice"),
        "no audio": stored({"other": CLIP.samples}, manifest=MANIFEST),
        "one more tensor": stored(AUDIO | {"other": CLIP.samples}, manifest=MANIFEST),
        "float64": stored({"audio": CLIP.samples.astype(np.float64)}, manifest=MANIFEST),
        "two channels": stored({"audio": clips.tone(1.0, 8000, 2)}, manifest=MANIFEST),
        "no samples": stored({"audio": CLIP.samples[:0]}, manifest=MANIFEST),
        "a NaN": stored({"audio": np.full(8000, np.nan, np.float32)}, manifest=MANIFEST),
    }.items(),
    ids=lambda case: case[0],
)
def test_anything_else_is_refused(data: tuple[str, bytes]):
    """A bucket is written to by others too. What is not whole must not reach an extractor."""
    with pytest.raises(InvalidAudio, match=r"^not a stored clip: "):
        ReferenceAudio.from_bytes(data[1])
