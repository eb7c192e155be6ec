"""Proves that an encoder computes correctly on its device before a worker serves with it.

The worker encodes a fixed clip as it will serve (device, dtype, batch), and again on a slow path that is
trusted: a second copy of the encoder, loaded from the same weights, in float32 on the CPU without oneDNN. The
results are compared tensor by tensor against `LIMITS`, and every weight on the device is compared bit by bit
with the second copy. This finds kernels that compute wrongly and memory that changed a weight.

While the proof is made, the second copy takes its size in host memory (0.1 to 1.5 GB) and one slow encoding.
It is dropped afterwards. A proof that succeeded is remembered on disk, so that a restart does not repeat it.
A proof that failed is never remembered.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from services.extractor_worker.device.host_memory import give_back_surplus
from services.extractor_worker.pipeline.extractor import Extractor
from services.extractor_worker.pipeline.speechlike import speechlike
from services.extractor_worker.pipeline.torch_extractor import TorchExtractor
from services.shared.audio import ReferenceAudio
from speaker_registry.artifact import TensorSpec, canonical_json, sha256_digest
from speaker_registry.atomic_files import write_atomically
from speaker_registry.engine import Dtype
from speaker_registry.errors import EncoderUnproven

log = structlog.get_logger()

Tensors = Mapping[str, NDArray[Any]]

_CLIP_RATE = 22_050
"""The sample rate of the clips in Hz. No encoder takes this rate, so the resampler is part of the proof."""
_CLIP_SECONDS = (2.4, 1.3)
"""The first clip is encoded alone. If the device encodes several clips at once, it is also encoded together
with the second one, which is padded. At every sample rate that encoders take, the first one is a multiple of
common strides in length: one library computes a convolution wrongly only where its stride divides the length.
"""

_MOST_KEPT = 500
"""The most proofs that are remembered. Each takes a few kilobytes, and a worker needs one per profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest differences that are allowed between a result and that of the trusted path."""

    equal_codes: float
    """The least share of codes that must be equal."""
    cosine_distance: float
    """The largest allowed 1 - cosine between two embeddings."""
    relative_error: float
    """The largest allowed ‖a - b‖ / ‖b‖ of tensors with a time axis, and the largest allowed relative
    difference between the lengths of two embeddings.
    """


LIMITS: Mapping[Dtype, Limits] = {
    # A different order of float32 sums moves results by 1e-6 (embeddings) to 6e-6 (VoxCPM2's latents),
    # measured on all encoders, and up to 1e-5 on an H100. 1e-3 leaves room for larger batches, and a wrong
    # kernel exceeds it by a factor of a hundred. A cosine distance of 5e-7 is the same angle of 1e-3.
    # Codes differ only if two entries are equally near. Such a tie in an early codebook changes all later
    # codebooks of its frame, which is 4 % of the 25 frames of Qwen3-TTS, so 95 % allows one tie.
    "float32": Limits(equal_codes=0.95, cosine_distance=5e-7, relative_error=1e-3),
    # bfloat16 keeps 8 bits, so each layer rounds by up to 0.4 %. With rounding alone, 61 % to 77 % of the
    # codes of Qwen3-TTS' tiny test checkpoint stay equal, and 93 % to 98 % at the published size. If one of
    # its convolutions is computed wrongly (with a third of its taps), only 1 % to 7 % and 3 % to 15 % stay
    # equal. Embeddings move by up to 1 % in length and 5e-5 in cosine distance. The limit is a hundred times
    # that.
    "bfloat16": Limits(equal_codes=0.3, cosine_distance=5e-3, relative_error=0.1),
}
"""The limits for each dtype that an encoder computes in. Tests check them from both sides."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of comparing one tensor. `text` is a sentence with the measured numbers and the limits."""

    passed: bool
    text: str


# --- comparing two encodings, without side effects


def compare(
    served: Tensors, trusted: Tensors, specs: Mapping[str, TensorSpec], limits: Limits
) -> list[Finding]:
    """Compare two encodings of one clip, tensor by tensor.

    Integer tensors are codes and are compared by the share that is equal. Floating-point tensors whose shape
    depends on the clip's length (`T`) are compared by relative error. All other tensors are embeddings and
    are compared by cosine and length.

    Args:
        specs: the profile's tensor specs by name. A tensor without a spec counts as an embedding.
    """
    if served.keys() != trusted.keys():
        return [Finding(False, f"the tensors are {sorted(served)}, {sorted(trusted)} are expected")]
    return [_compared(name, served[name], trusted[name], specs.get(name), limits) for name in sorted(trusted)]


def _compared(
    name: str, served: NDArray[Any], trusted: NDArray[Any], spec: TensorSpec | None, limits: Limits
) -> Finding:
    if (served.shape, served.dtype) != (trusted.shape, trusted.dtype):
        found, expected = (f"{one.dtype} {list(one.shape)}" for one in (served, trusted))
        return Finding(False, f"{name} is {found}, {expected} is expected")
    if served.dtype.kind in "iu":
        return _compared_codes(name, served, trusted, limits)
    a, b = served.astype(np.float64).ravel(), trusted.astype(np.float64).ravel()
    if not np.isfinite(a).all():
        return Finding(False, f"{name} has values that are not finite")
    per_frame = spec is not None and any(isinstance(size, str) for size in spec.shape)
    return (_compared_frames if per_frame else _compared_embeddings)(name, a, b, limits)


def _compared_codes(name: str, a: NDArray[Any], b: NDArray[Any], limits: Limits) -> Finding:
    equal = float(np.mean(a == b))
    return Finding(
        equal >= limits.equal_codes,
        f"{name}: {equal:.2%} of the codes are equal, at least {limits.equal_codes:.0%} are expected",
    )


def _compared_frames(name: str, a: NDArray[Any], b: NDArray[Any], limits: Limits) -> Finding:
    error = _ratio(np.linalg.norm(a - b), np.linalg.norm(b))
    return Finding(
        error <= limits.relative_error,
        f"{name}: the relative error is {error:.1e}, at most {limits.relative_error:.0e} is expected",
    )


def _compared_embeddings(name: str, a: NDArray[Any], b: NDArray[Any], limits: Limits) -> Finding:
    lengths = np.linalg.norm(a), np.linalg.norm(b)
    # For unit vectors, 1 - cosine is half the squared distance, which keeps its digits near 0.
    units = [vector / length if length else vector for vector, length in zip((a, b), lengths, strict=True)]
    distance = float(np.sum((units[0] - units[1]) ** 2) / 2)
    length_error = _ratio(abs(lengths[0] - lengths[1]), lengths[1])
    return Finding(
        distance <= limits.cosine_distance and length_error <= limits.relative_error,
        f"{name}: the cosine distance is {distance:.1e}, at most {limits.cosine_distance:.0e} is expected; "
        f"the lengths differ by {length_error:.1e}, at most {limits.relative_error:.0e} is expected",
    )


def _ratio(difference: Any, whole: Any) -> float:
    """Return the quotient. It is 0 if both arguments are 0, and infinite if only `whole` is."""
    if not difference:
        return 0.0
    return float(difference / whole) if whole else float("inf")


# --- the proof


def prove(
    extractor: Extractor, load_trusted: Callable[[], Extractor], specs: Mapping[str, TensorSpec]
) -> list[Finding]:
    """Encode the fixed clips both ways and compare.

    Args:
        extractor: the encoder as it will serve.
        load_trusted: loads a second copy of it, in float32 on the CPU, that shares nothing with the first.
        specs: the profile's tensor specs by name.

    Raises:
        DeviceLost, ExtractorOutOfMemory, WeightsMissing, WeightsInvalid: loading or encoding failed.
    """
    clips = [ReferenceAudio(speechlike(seconds, _CLIP_RATE), _CLIP_RATE) for seconds in _CLIP_SECONDS]
    together = len(clips) * clips[0].seconds <= extractor.batch_seconds
    clips = clips if together else clips[:1]
    served = [_encoded(extractor, clips[:1])] + ([_encoded(extractor, clips)] if together else [])
    with without_onednn():
        trusted_extractor = load_trusted()
        trusted = [tensors for clip in clips for tensors in _encoded(trusted_extractor, [clip])]
    limits = LIMITS[_dtype_of(extractor)]
    findings = [
        finding
        for group in served
        for ours, theirs in zip(group, trusted, strict=False)  # a clip encoded alone has no second one
        for finding in compare(ours, theirs, specs, limits)
    ]
    return [*findings, *_weights_compared(extractor, trusted_extractor)]


def _encoded(extractor: Extractor, clips: Sequence[ReferenceAudio]) -> list[Tensors]:
    encoded = extractor.encode([extractor.prepare(clip) for clip in clips])
    return [extractor.finish(one) for one in encoded]


def _dtype_of(extractor: Extractor) -> Dtype:
    """Return the dtype in the encoder's fingerprint, or float32 for an encoder that names none."""
    return "bfloat16" if extractor.fingerprint.inputs.get("dtype") == "bfloat16" else "float32"


def _weights_compared(extractor: Extractor, trusted: Extractor) -> Iterator[Finding]:
    """Compare weights bit by bit, because a changed weight may move a result by very little or very much."""
    if not isinstance(extractor, TorchExtractor) or not isinstance(trusted, TorchExtractor):
        return
    expected = trusted.held_tensors()
    for name, tensor in extractor.held_tensors().items():
        other = expected.get(name)
        if other is None or not torch.equal(tensor.cpu(), other.to(tensor.dtype)):
            yield Finding(False, f"the weight {name} on the device is not what was loaded")


@contextmanager
def without_onednn() -> Iterator[None]:
    """Compute with torch's own CPU kernels inside the block.

    The switch belongs to the whole process, so nothing else may be encoded meanwhile.
    """
    onednn: Any = torch.backends.mkldnn  # a module of properties, which types cannot say
    before, onednn.enabled = onednn.enabled, False
    try:
        yield
    finally:
        onednn.enabled = before


# --- remembering proofs


class KeptProofs:
    """Remembers proofs that succeeded, in one small JSON file each.

    Args:
        folder: the folder for the files. It is created when the first proof is kept, and workers may share
        it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def made_at(self, description: Mapping[str, Any]) -> float | None:
        """Return when a proof with exactly this description was made, in Unix seconds, or None if none was
        kept.
        """
        with suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(self._path(description).read_text(encoding="utf-8"))
            return float(kept["at"]) if kept["about"] == dict(description) else None
        return None

    def keep(self, description: Mapping[str, Any], findings: Sequence[Finding], at: float) -> None:
        """Remember a proof. If the folder cannot be written, the next start makes the proof again."""
        content = {"about": dict(description), "findings": [one.text for one in findings], "at": int(at)}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(description), json.dumps(content, indent=1, sort_keys=True).encode())
            self._forget_oldest()
        except OSError as error:
            log.warning("proof.not_kept", reason=error.strerror or str(error))

    def _forget_oldest(self) -> None:
        """Delete the oldest files. Every upgrade leaves proofs behind that are never looked up again."""
        kept = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-_MOST_KEPT]:
            path.unlink(missing_ok=True)

    def _path(self, description: Mapping[str, Any]) -> Path:
        name = sha256_digest(canonical_json(dict(description)).encode()).removeprefix("sha256:")
        return self._folder / f"{name}.json"


def prove_once(
    extractor: Extractor,
    load_trusted: Callable[[], Extractor],
    specs: Mapping[str, TensorSpec],
    *,
    machine: Mapping[str, str],
    kept: KeptProofs,
) -> float:
    """Prove the encoder, unless a proof of the same encoder on the same machine is remembered.

    Args:
        machine: everything besides the fingerprint that may change a result, from `machine_description`.

    Returns:
        When the proof was made, in Unix seconds.

    Raises:
        EncoderUnproven: the results differ; the message says in which tensor and by how much. Errors of
            `prove` are raised as well.
    """
    description = {"fingerprint": extractor.fingerprint.digest, "machine": dict(machine)}
    name = extractor.profile_name
    if (made_at := kept.made_at(description)) is not None:
        log.info("proof.remembered", profile=name)
        return made_at
    started = time.monotonic()
    findings = prove(extractor, load_trusted, specs)
    give_back_surplus(0)
    seconds = round(time.monotonic() - started, 2)
    if failed := [one.text for one in findings if not one.passed]:
        raise EncoderUnproven(
            f"{name}: the encoder computes something else on this device than on the trusted path: "
            + "; ".join(dict.fromkeys(failed))
        )
    log.info("proof.held", profile=name, seconds=seconds, findings=[one.text for one in findings])
    made_at = time.time()
    kept.keep(description, findings, made_at)
    return made_at
