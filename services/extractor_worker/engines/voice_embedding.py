"""Converts a voice embedding of the kind that Mistral publishes into a file for `speaker-registry put`.

`python -m services.extractor_worker convert-voice VOICE.pt VOICE.safetensors`

The published file is a pickle and may come from anywhere. It is read in a process of its own, which gives up
access to files and the network and limits its memory before it reads a byte. That process uses torch's reader
for `weights_only`, which creates nothing but tensors.
"""

import argparse
import io
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from services.shared.audio.sandbox import lockdown
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import InvalidArtifact

MAX_FILE_BYTES = 64 * 1024**2
_MEMORY_BYTES = 512 * 1024**2
"""The memory that reading a file may use, in addition to the memory that torch itself uses."""
_SECONDS = 60.0
_TENSOR = "voice_embedding"


def read_voice_embedding(data: bytes) -> NDArray[np.float32]:
    """Read a pickled tensor, safely.

    Args:
        data: the whole `.pt` file: one tensor [L, hidden] of floating-point numbers.

    Returns:
        float32 [L, hidden], finite.

    Raises:
        InvalidArtifact: the file holds something else, or is too large.
    """
    if len(data) > MAX_FILE_BYTES:
        raise InvalidArtifact(f"the file has more than the {MAX_FILE_BYTES} bytes that are accepted")
    command = [sys.executable, "-m", "services.extractor_worker.engines.voice_embedding", "--guarded"]
    try:
        answer = subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise InvalidArtifact(f"the file could not be read within {_SECONDS:g} s") from error
    if answer.returncode != 0:
        raise InvalidArtifact(
            "the file is no torch-saved tensor [L, hidden] of floating-point numbers: "
            "it is damaged, cut short, or holds something else"
        )
    embedding: NDArray[np.float32] = np.load(io.BytesIO(answer.stdout), allow_pickle=False)
    _check(embedding)
    return embedding


def _check(embedding: NDArray[np.float32]) -> None:
    from services.shared.model.profiles import BUILT_IN  # noqa: PLC0415 - the guarded process does not need this import

    check_tensors({_TENSOR: embedding}, BUILT_IN["voxtral"].tensors)


def _read_guarded() -> None:
    """Convert stdin to .npy on stdout, in the guarded process. Any error ends that process."""
    import torch  # noqa: PLC0415 - the process that starts this one does not need torch

    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        # Read each dtype once: torch inspects the processor and imports modules when it first needs them.
        example = io.BytesIO()
        torch.save(torch.zeros(1, 64, dtype=dtype), example)
        _to_npy(example.getvalue())
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    lockdown.limit_resources(used_bytes + _MEMORY_BYTES, int(_SECONDS))
    lockdown.forbid_system_calls()
    sys.stdout.buffer.write(_to_npy(sys.stdin.buffer.read(MAX_FILE_BYTES)))
    sys.stdout.buffer.flush()


def _to_npy(data: bytes) -> bytes:
    import torch  # noqa: PLC0415

    tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 2 or not tensor.is_floating_point():
        raise SystemExit(1)
    buffer = io.BytesIO()
    np.save(buffer, tensor.detach().float().contiguous().numpy(), allow_pickle=False)
    return buffer.getvalue()


def main(words: Sequence[str], program: str) -> int:
    """Convert a file and return the exit status. `program` is the command's name in its help."""
    parser = argparse.ArgumentParser(
        prog=program,
        allow_abbrev=False,
        description="Convert a voice embedding as Mistral publishes them (.pt) to the safetensors file that "
        "`speaker-registry put … --profile voxtral` uploads. The .pt file is read in a guarded process.",
    )
    parser.add_argument("source", type=Path, metavar="VOICE.pt")
    parser.add_argument("target", type=Path, metavar="VOICE.safetensors")
    arguments = parser.parse_args(words)
    try:
        with arguments.source.open("rb") as source:
            embedding = read_voice_embedding(source.read(MAX_FILE_BYTES + 1))
        arguments.target.write_bytes(save({_TENSOR: embedding}))
    except (InvalidArtifact, OSError) as error:
        print(f"{arguments.source.name}: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.target.name}: {_TENSOR}, float32 {list(embedding.shape)}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] != ["--guarded"]:
        sys.exit(
            "This module is run by `python -m services.extractor_worker convert-voice`. Use that command."
        )
    _read_guarded()
