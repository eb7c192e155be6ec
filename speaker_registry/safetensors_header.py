"""The header of a safetensors file. It is checked here before a library allocates memory as the header says.

The bytes need not be trusted. This module knows no manifest and reads no tensors.
"""

import json
import mmap
import struct
from typing import Any

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


def read_metadata(data: bytes) -> dict[str, str]:
    """Read the metadata in the header of a safetensors file. The first 8 bytes and the header suffice.

    Entries that are not text are left out, because safetensors allows only text.

    Raises:
        InvalidArtifact: The header is incomplete, larger than 64 KiB, or not a JSON object.
    """
    metadata = read_header(data).get("__metadata__")
    entries = metadata.items() if isinstance(metadata, dict) else ()
    return {key: value for key, value in entries if isinstance(value, str)}
