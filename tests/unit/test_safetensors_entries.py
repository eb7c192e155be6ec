"""Tests of what is said of a file whose safetensors header is wrong."""

import json
import struct
from typing import Any

import pytest

from speaker_registry.artifact import TensorSpec, read_tensors
from speaker_registry.errors import InvalidArtifact

ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def file(header: Any, data_bytes: int = 16) -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(data_bytes)


def test_a_file_without_fault_is_read():
    assert read_tensors(file({"a": ENTRY}))[0]["a"].tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "BF16"}, "dtype 'BF16'; accepted: ['F16', 'F32', 'F64', 'I16', 'I32', 'I64']"),
        ({"dtype": 3}, "dtype 3; accepted: ['F16', "),
        ({"shape": [-4]}, "shape [-4]; accepted: a list of whole numbers that are not negative"),
        ({"shape": 4}, "shape 4; accepted: a list"),
        ({"shape": [2**40, 2**40]}, "shape [1099511627776, 1099511627776] and dtype F32, which do not take"),
        ({"data_offsets": [16, 0]}, "data_offsets [16, 0]; accepted: its first byte and the one after its"),
        ({"data_offsets": [0, 8, 16]}, "data_offsets [0, 8, 16]; accepted: its first byte"),
        ({"shape": [5], "data_offsets": [0, 20]}, "but the file is cut short: it has 16 bytes of data"),
    ],
)
def test_a_fault_of_one_tensor_is_named(change: dict[str, Any], says: str):
    """Whoever writes such files sees what is wrong, and what is accepted."""
    with pytest.raises(InvalidArtifact) as caught:
        read_tensors(file({"a": ENTRY | change}))
    assert str(caught.value).startswith("tensor 'a' has ")
    assert says in str(caught.value)


def test_a_dtype_that_no_file_may_have_is_refused_with_the_one_that_the_profile_requires():
    """The profile accepts only one dtype for this tensor."""
    with pytest.raises(InvalidArtifact) as caught:
        read_tensors(file({"a": ENTRY | {"dtype": "BF16"}}), {"a": TensorSpec(dtype="F32", shape=(4,))})
    assert str(caught.value) == "tensor 'a' has dtype 'BF16'; accepted: F32"


@pytest.mark.parametrize("manifest", ["", "{", "[]"])
def test_a_manifest_that_is_no_json_object_is_called_that(manifest: str):
    """No member of it could be named."""
    with pytest.raises(InvalidArtifact, match=r"the manifest is not valid: it is not a JSON object$"):
        read_tensors(file({"__metadata__": {"manifest": manifest}, "a": ENTRY}))


@pytest.mark.parametrize(
    ("header", "data_bytes", "says"),
    [
        ({"a": ENTRY}, 20, "not fully covered"),
        ({"a": ENTRY, "b": {**ENTRY, "data_offsets": [8, 24]}}, 24, "invalid offset for tensor `b`"),
        ({"__metadata__": {"a": 1}, "a": ENTRY}, 16, "expected a string"),
    ],
)
def test_a_fault_of_the_whole_file_has_a_reason(header: dict[str, Any], data_bytes: int, says: str):
    with pytest.raises(InvalidArtifact, match="the file is not a whole safetensors file: ") as caught:
        read_tensors(file(header, data_bytes))
    assert says in str(caught.value)
