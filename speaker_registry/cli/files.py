"""The files that commands read and write."""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from speaker_registry.atomic_files import write_atomically
from speaker_registry.cli.command import REFUSED, STANDARD_OUTPUT, CommandError, writing_output
from speaker_registry.errors import InvalidArtifact

if TYPE_CHECKING:
    import numpy as np


def check_output(arguments: argparse.Namespace, what: str) -> None:
    """Check the output options before anything is fetched. Raises `CommandError`."""
    if arguments.output == "-" and arguments.json:
        raise CommandError("--json and -o - both write to standard output; choose one of them")
    if arguments.output == "-" and sys.stdout is None:
        raise CommandError(f"{STANDARD_OUTPUT} is closed; give a file with -o", status=REFUSED)
    if arguments.output == "-" and sys.stdout.isatty():
        raise CommandError(
            f"{what} is binary and is not written to a terminal; give a file with -o, or redirect the output"
        )


def deliver(arguments: argparse.Namespace, data: bytes) -> None:
    if arguments.output != "-":
        write_atomically(Path(arguments.output), data)
        return
    with writing_output():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def open_clip(argument: str | None) -> Path | IO[bytes] | None:
    if argument == "-":
        return sys.stdin.buffer
    return None if argument is None else Path(argument)


def read_artifact(argument: str) -> bytes:
    """Read an artifact. Raises `CommandError` if it is not a safetensors file, before anything is sent."""
    from speaker_registry.artifact import read_tensors  # noqa: PLC0415  only this command needs it
    from speaker_registry.session import read_clip  # noqa: PLC0415

    data = read_clip(sys.stdin.buffer if argument == "-" else Path(argument), "artifact")
    try:
        read_tensors(data)
    except InvalidArtifact as error:
        where = "standard input" if argument == "-" else argument
        message = f"{where} is not an artifact: {error.message}; accepted: a safetensors file"
        raise CommandError(message, status=REFUSED) from None
    return data


def read_embedding(argument: str | None) -> "np.ndarray | None":
    """Read an embedding (float64 [D]), or return None without an argument. Raises `CommandError` if the file
    is too large, and `InvalidEmbedding` if it is not a JSON list of numbers.
    """
    if argument is None:
        return None
    from speaker_registry.embeddings import MAX_EMBEDDING_BYTES, parse_embedding  # noqa: PLC0415  loads numpy

    where = "standard input" if argument == "-" else argument
    with contextlib.nullcontext(sys.stdin.buffer) if argument == "-" else Path(argument).open("rb") as file:
        data = file.read(MAX_EMBEDDING_BYTES + 1)
    if len(data) > MAX_EMBEDDING_BYTES:
        raise CommandError(
            f"{where} has more than {MAX_EMBEDDING_BYTES} bytes, which is the maximum for an embedding",
            status=REFUSED,
        )
    return parse_embedding(data, where)


def read_ref_text(arguments: argparse.Namespace) -> str | None:
    path: str | None = arguments.ref_text_file
    if path is None:
        text: str | None = arguments.ref_text
        return text
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8 text", status=REFUSED) from None
