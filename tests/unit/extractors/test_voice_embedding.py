"""Voice embeddings that Mistral publishes are read safely or refused."""

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from services.extractor_worker.engines.voice_embedding import MAX_FILE_BYTES, _to_npy, read_voice_embedding
from speaker_registry.errors import InvalidArtifact

CONVERT = [sys.executable, "-m", "services.extractor_worker", "convert-voice"]


def saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


class Hostile:
    """Creates a file if it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_published_voice_becomes_float32(dtype: torch.dtype) -> None:
    """Voices are published in bfloat16. float32 represents every value exactly."""
    voice = torch.randn(147, 3072, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert np.array_equal(np.load(io.BytesIO(_to_npy(saved(voice)))), voice.float().numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        {"voice_embedding": torch.zeros(2, 2)},
        [torch.zeros(2, 2)],
        torch.zeros(4),
        torch.zeros(2, 2, 2),
        torch.zeros(2, 2, dtype=torch.int64),
        "text",
    ],
    ids=str,
)
def test_anything_but_one_tensor_of_two_dimensions_ends_the_process_that_reads(content: object) -> None:
    with pytest.raises(SystemExit) as ended:
        _to_npy(saved(content))
    assert ended.value.code == 1


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x04", saved(torch.ones(9, 9))[:-200]])
def test_a_damaged_file_is_an_error_in_the_process_that_reads(data: bytes) -> None:
    with pytest.raises((EOFError, RuntimeError, pickle.UnpicklingError)):
        _to_npy(data)


@pytest.mark.parametrize("data", [saved("text"), saved(torch.ones(9, 9))[:-200]], ids=["text", "cut short"])
def test_what_ends_the_process_that_reads_is_refused(data: bytes) -> None:
    refusal = r"no torch-saved tensor \[L, hidden\] of floating-point numbers: it is damaged, cut short, or"
    with pytest.raises(InvalidArtifact, match=refusal):
        read_voice_embedding(data)


@pytest.mark.parametrize("protocol", ["torch", "pickle"])
def test_a_hostile_file_does_nothing(tmp_path: Path, protocol: str) -> None:
    """A hostile file does nothing, whether it is in torch's format or a bare pickle."""
    hostile = Hostile(tmp_path / "mark")
    data = saved(hostile) if protocol == "torch" else pickle.dumps(hostile)
    with pytest.raises(InvalidArtifact):
        read_voice_embedding(data)
    assert not hostile.mark.exists()


def test_the_process_that_reads_can_open_nothing() -> None:
    """A security hole in the reader would give no access to files, the network or other processes."""
    program = (
        "import services.extractor_worker.engines.voice_embedding as guarded\n"
        "def attack(data):\n"
        "    if data == b'hostile':  # not the rehearsals\n"
        "        for path in ('/etc/passwd', '/proc/self/environ'):\n"
        "            try: open(path); print('opened', path)\n"
        "            except OSError: pass\n"
        "        import os\n"
        "        try: os.fork(); print('forked')\n"
        "        except OSError: pass\n"
        "    return b'done'\n"
        "guarded._to_npy = attack\n"
        "guarded._read_guarded()\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], input=b"hostile", capture_output=True, check=False
    )
    assert answer.stdout == b"done", answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    """Such numbers would silence every sentence."""
    with pytest.raises(InvalidArtifact, match="not finite"):
        read_voice_embedding(saved(torch.full((2, 3072), value)))


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    """No more of a file is read than the limit and one byte."""
    with pytest.raises(InvalidArtifact, match="the file has more than the 67108864 bytes that are accepted"):
        read_voice_embedding(bytes(MAX_FILE_BYTES + 1))
    source = tmp_path / "voice.pt"
    with source.open("wb") as file:
        file.truncate(2**40)
    command = [*CONVERT, source, tmp_path / "out"]
    refused = subprocess.run(command, check=False, capture_output=True)
    assert refused.returncode == 1
    assert refused.stderr == b"voice.pt: the file has more than the 67108864 bytes that are accepted\n"


@pytest.mark.slow
def test_the_command_writes_what_the_registry_takes(tmp_path: Path) -> None:
    source, target = tmp_path / "voice.pt", tmp_path / "voice.safetensors"
    source.write_bytes(saved(torch.ones(3, 3072, dtype=torch.bfloat16)))
    command = [*CONVERT, source, target]
    assert subprocess.run(command, check=True, capture_output=True).stdout.endswith(b"float32 [3, 3072]\n")
    written = safetensors.numpy.load_file(target)["voice_embedding"]
    assert np.array_equal(written, np.ones((3, 3072), np.float32))
    source.write_bytes(b"")
    failed = subprocess.run(command, check=False, capture_output=True)
    assert failed.returncode == 1
    assert b"voice.pt: the file is no torch-saved tensor" in failed.stderr
