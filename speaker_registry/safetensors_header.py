"""The header of a safetensors file. It is checked here before a library allocates memory as the header says.

The bytes need not be trusted. This module knows no manifest and reads no tensors.
"""

import json
import math
import mmap
import struct
from collections.abc import Mapping
from typing import Any, TypeGuard

from speaker_registry.errors import InvalidArtifact
from speaker_registry.json_objects import without_duplicates

MAX_HEADER_BYTES = 64 * 1024


def read_header(data: bytes | mmap.mmap) -> dict[str, Any]:
    """Parse the header of a safetensors file. The first 8 bytes and the header suffice.

    Raises:
        InvalidArtifact: The header is incomplete, larger than 64 KiB, not a JSON object, or has duplicate
            keys.
    """
    if len(data) < 8:
        raise InvalidArtifact(f"the file has {len(data)} bytes and is not a safetensors file")
    (length,) = struct.unpack("<Q", data[:8])
    if length > MAX_HEADER_BYTES or length > len(data) - 8:
        raise InvalidArtifact(
            f"the safetensors header declares {length} bytes; "
            f"the file has {len(data)} bytes, and the header may have at most {MAX_HEADER_BYTES}"
        )
    try:
        header = json.loads(data[8 : 8 + length], object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise InvalidArtifact("the safetensors header is not valid JSON, or has duplicate keys") from error
    if not isinstance(header, dict):
        raise InvalidArtifact("the safetensors header is not a JSON object")
    return header


def check_entries(
    data: bytes, header: Mapping[str, Any], item_bytes: Mapping[str, int], required: Mapping[str, str]
) -> None:
    """Check the entry of each tensor alone, for errors that name the tensor and what is accepted. Whether the
    tensors cover the data without a gap is left to the library.

    Args:
        header: The header of the file `data`, without `__metadata__`.
        item_bytes: The accepted dtypes, with the number of bytes of one value.
        required: The dtypes of known tensors. They are named if another dtype is not accepted at all.

    Raises:
        InvalidArtifact: An entry is not accepted.
    """
    (length,) = struct.unpack("<Q", data[:8])
    for name, entry in header.items():
        fault = _fault(entry, item_bytes, len(data) - 8 - length, required.get(name))
        if fault:
            raise InvalidArtifact(f"tensor {name[:80]!a} has {fault}")


def _fault(entry: Any, item_bytes: Mapping[str, int], data_bytes: int, required: str | None) -> str | None:
    members = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (members.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in item_bytes:
        return f"dtype {dtype!a:.80}; accepted: {required or sorted(item_bytes)}"
    if not _are_counts(shape):
        return f"shape {shape!a:.80}; accepted: a list of whole numbers that are not negative"
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"data_offsets {offsets!a:.80}; accepted: its first byte and the one after its last"
    if offsets[1] > data_bytes:
        return f"data_offsets {offsets!a:.80}, but the file is cut short: it has {data_bytes} bytes of data"
    if math.prod(shape) * item_bytes[dtype] != offsets[1] - offsets[0]:
        return f"shape {shape!a:.80} and dtype {dtype}, which do not take the bytes of data_offsets {offsets}"
    return None


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def read_metadata(data: bytes) -> dict[str, str]:
    """Read the metadata in the header of a safetensors file. The first 8 bytes and the header suffice.

    Entries that are not text are left out, because safetensors allows only text.

    Raises:
        InvalidArtifact: The header is incomplete, larger than 64 KiB, or not a JSON object.
    """
    metadata = read_header(data).get("__metadata__")
    entries = metadata.items() if isinstance(metadata, dict) else ()
    return {key: value for key, value in entries if isinstance(value, str)}
