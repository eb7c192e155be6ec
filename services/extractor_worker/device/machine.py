"""Describes what this process computes on: device, instruction set, libraries. This module knows torch but no
model.
"""

import hashlib
import importlib
import os
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

from speaker_registry.artifact import ComputedOn

_INSTRUCTIONS = ("avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")
"""The CPU features by which torch's libraries choose their kernels."""
_LIBRARIES = ("numpy", "onnxruntime", "scipy", "transformers")
"""The libraries that compute besides torch. Some are installed only if a profile needs them."""
_KERNEL_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_",
    "CUDNN_",
    "DNNL_",
    "KMP_",
    "MKL_",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_",
    "TORCH_",
)
"""Environment variables that begin with one of these change which kernels run."""


def computed_on(device: torch.device) -> ComputedOn:
    """Return the description of this machine for a manifest."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return ComputedOn(device="cuda", gpu=name, torch=torch.__version__)
    return ComputedOn(device=device.type, instruction_set=_instruction_set(), torch=torch.__version__)


def machine_description(device: torch.device) -> dict[str, str]:
    """Return everything about the machine that may change what an encoder computes.

    A GPU is described with its serial number (UUID), because a single card may be broken. Of the environment
    variables, only those that choose kernels are included.
    """
    capabilities = torch.cpu.get_capabilities()
    description = {
        **computed_on(device).model_dump(exclude_none=True),
        "cpu": f"{capabilities.get('cpu_name', '')} {_instruction_set()}",
        "threads": str(torch.get_num_threads()),
        "torch_build": torch.__config__.show(),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "our_code": _code_digest(),
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        description |= {"gpu_uuid": str(card.uuid), "gpu_architecture": f"{card.major}.{card.minor}"}
    description |= {name: _version(name) for name in _LIBRARIES if find_spec(name)}
    description |= {name: value for name, value in os.environ.items() if name.startswith(_KERNEL_VARIABLES)}
    return description


def _version(library: str) -> str:
    """Return a library's version without importing it if possible, because some imports take seconds."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:  # a package of another name brings it, such as onnxruntime-gpu
        return str(importlib.import_module(library).__version__)


@cache
def _instruction_set() -> str:
    """Return what torch's own kernels use and what the CPU has, e.g. `AVX512 (avx2 avx512_f avx512_bf16)`."""
    capabilities = torch.cpu.get_capabilities()
    found = " ".join(name for name in _INSTRUCTIONS if capabilities.get(name))
    return f"{torch.backends.cpu.get_cpu_capability()} ({found})"


@cache
def _code_digest() -> str:
    """Return the SHA-256 of this package's source, which changes with every release and every local edit."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
