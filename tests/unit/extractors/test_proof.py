"""Tests of the proof that an encoder must give before it is served: that the device computes its results
rightly.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor, nn
from torch.nn import functional

from services.extractor_worker.device.machine import machine_description
from services.extractor_worker.models.nearest import nearest_entries
from services.extractor_worker.pipeline import proof
from services.extractor_worker.pipeline.extractor import Extractor
from services.extractor_worker.pipeline.proof import LIMITS, KeptProofs, compare, prove, prove_once
from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor
from services.extractor_worker.weights.loading import UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import TensorSpec
from speaker_registry.engine import Dtype
from speaker_registry.errors import EncoderUnproven
from tests.unit.extractors.conftest import load_tiny
from tests.unit.extractors.tiny_engines import ENGINES, every_engine

SPECS = {
    "codes": TensorSpec(dtype="I64", shape=("T", 4)),
    "embedding": TensorSpec(dtype="F32", shape=(4,)),
    "latents": TensorSpec(dtype="F32", shape=("T", 4)),
}

# --- the limits, from both sides


def verdict(name: str, served: Any, trusted: Any, dtype: Dtype = "float32") -> bool:
    [finding] = compare({name: served}, {name: trusted}, SPECS, LIMITS[dtype])
    return finding.passed


@pytest.mark.parametrize(("dtype", "differing"), [("float32", 5), ("bfloat16", 70)])
def test_codes_are_held_to_the_share_that_is_equal(dtype: Dtype, differing: int):
    """There are 100 codes, so that each is one per cent."""
    codes = np.arange(100).reshape(25, 4)
    other = codes.copy()
    other.flat[:differing] += 1
    assert verdict("codes", other, codes, dtype)
    other.flat[differing] += 1
    assert not verdict("codes", other, codes, dtype)


@pytest.mark.parametrize(("dtype", "angle"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_embeddings_are_held_to_their_direction(dtype: Dtype, angle: float):
    """The cosine distance of a small angle is half its square.

    99 % of the limit is accepted, 101 % is not.
    """
    embedding = np.array([3, 0, 0, 0], np.float32)
    near, far = (
        np.array([3 * math.cos(turned), 3 * math.sin(turned), 0, 0], np.float32)
        for turned in (0.99 * angle, 1.01 * angle)
    )
    assert verdict("embedding", near, embedding, dtype)
    assert not verdict("embedding", far, embedding, dtype)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-3), ("bfloat16", 0.1)])
@pytest.mark.parametrize("name", ["embedding", "latents"])
def test_a_tensor_that_is_too_long_or_too_short_is_another_one(name: str, dtype: Dtype, error: float):
    """A cosine alone would not show a device that scales every value."""
    tensor = np.array([3, 4, 12, 84], np.float32)
    for sign in (1, -1):
        assert verdict(name, tensor * np.float32(1 + sign * 0.99 * error), tensor, dtype)
        assert not verdict(name, tensor * np.float32(1 + sign * 1.01 * error), tensor, dtype)


@pytest.mark.parametrize("name", ["embedding", "latents"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_never_holds(name: str, value: float):
    assert not verdict(name, np.full(4, value, np.float32), np.ones(4, np.float32))


@pytest.mark.parametrize("name", ["embedding", "latents"])
def test_zeros_are_equal_to_zeros_alone(name: str):
    """Zeros have no direction."""
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert verdict(name, zeros, zeros)
    assert not verdict(name, ones, zeros)
    assert not verdict(name, zeros, ones)


def test_other_tensors_shapes_and_types_never_hold():
    ones = np.ones((2, 4), np.float32)
    assert not verdict("latents", ones[:1], ones)
    assert not verdict("latents", ones.astype(np.float64), ones)
    [finding] = compare({"codes": ones}, {"latents": ones}, SPECS, LIMITS["float32"])
    assert not finding.passed
    assert finding.text == "the tensors are ['codes'], ['latents'] are expected"


def test_a_finding_says_which_tensor_and_by_how_much():
    """The log and `/v1/profiles` show this text."""
    codes = np.zeros((25, 4), np.int64)
    [finding] = compare({"codes": codes + 1}, {"codes": codes}, SPECS, LIMITS["float32"])
    assert finding.text == "codes: 0.00% of the codes are equal, at least 95% are expected"


# --- encoders that are right


def failures(extractor: Extractor, trusted: Callable[[], Extractor], specs: Any = SPECS) -> list[str]:
    return [finding.text for finding in prove(extractor, trusted, specs) if not finding.passed]


@every_engine
def test_every_encoder_proves_itself(name: str):
    """The fast kernels of the processor that runs this test agree with the plain ones."""
    engine = ENGINES[name]
    specs = BUILT_IN[engine.profile].tensors
    assert failures(engine.load(), lambda: engine.load(trusted=True), specs) == []


def test_an_encoder_in_bfloat16_is_held_against_float32():
    tensors = BUILT_IN["qwen3-tts-0.6b"].tensors
    assert failures(load_tiny(dtype="bfloat16"), load_tiny, tensors) == []


def test_the_trusted_path_does_without_onednn_and_leaves_it_as_it_was():
    """oneDNN itself may be what computes wrongly."""
    seen: list[bool] = []

    def trusted() -> Extractor:
        seen.append(bool(torch.backends.mkldnn.enabled))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        prove(load_tiny(), trusted, SPECS)
    assert seen == [False]
    assert torch.backends.mkldnn.enabled


# --- a convolution that one library computes wrongly on one kind of processor

STRIDE, TAPS = 6, 12
BOOK = 256


class Convolutions(TorchExtractor[Tensor, Tensor]):
    """16 -> 32 channels, kernel 12, stride 6 as in Mimi's encoder, then codes and an embedding.

    oneDNN 3.12 computes this convolution wrongly in bfloat16 on processors with AMX, by more than 80 %; on
    some of them only if the stride divides the length.
    """

    code_version = 1

    def __init__(self, loading: Loading) -> None:
        super().__init__(loading, weights={"untrained": True, "seed": 0})
        drawn = torch.Generator().manual_seed(1)

        def weights(*shape: int) -> Tensor:
            bound = math.sqrt(3 / math.prod(shape[1:]))
            return torch.empty(shape).uniform_(-bound, bound, generator=drawn)

        self.first, self.second, self.projection, self.book = (
            tensor.to(self.device, self.dtype)
            for tensor in (
                weights(16, 1, 4),
                weights(32, 16, TAPS),
                weights(64, 32),
                functional.normalize(weights(BOOK, 32)),
            )
        )

    def _prepare(self, clip: ReferenceAudio) -> Tensor:
        return self.resampled(clip, 16_000)[None, None]

    def _encode(self, prepared: Tensor) -> Tensor:
        hidden = functional.conv1d(self.on_device(prepared), self.first, stride=4).tanh()
        return self.convolved(hidden)[0].T  # [T, 32]

    def convolved(self, hidden: Tensor) -> Tensor:
        return functional.conv1d(hidden, self.second, stride=STRIDE)

    def _finish(self, encoded: Tensor) -> dict[str, Tensor]:
        return {
            "codes": nearest_entries(functional.normalize(encoded.float()), self.book.float())[:, None],
            "embedding": (encoded @ self.projection.T).mean(dim=0).float(),
        }


class WrongConvolutions(Convolutions):
    """Uses four of the twelve taps. The error is sqrt(8 / 12) = 82 %, as on processors with AMX."""

    def convolved(self, hidden: Tensor) -> Tensor:
        seen = self.second.clone()
        seen[..., 4:] = 0
        return functional.conv1d(hidden, seen, stride=STRIDE)


def convolutions(kind: type[Convolutions] = Convolutions, dtype: Dtype = "float32") -> Convolutions:
    return kind(Loading(profile=BUILT_IN["voxcpm2"], source=UntrainedWeights(), dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_device_that_computes_one_convolution_wrongly_is_found(dtype: Dtype):
    assert len(failures(convolutions(WrongConvolutions, dtype), convolutions)) == 2


def test_the_real_convolution_is_proven_exactly_where_it_is_right():
    """The proof finds oneDNN's error on processors with AMX, and accepts bfloat16 on all others."""
    extractor = convolutions(dtype="bfloat16")
    hidden = torch.empty(1, 16, 960).uniform_(-1, 1, generator=torch.Generator().manual_seed(2)).bfloat16()
    exact = functional.conv1d(hidden.double(), extractor.second.double(), stride=STRIDE)
    error = (extractor.convolved(hidden).double() - exact).norm() / exact.norm()
    assert (failures(extractor, convolutions) == []) == (error < 0.05)


# --- a device that flips a bit


def first_weight(extractor: Extractor) -> tuple[str, Tensor]:
    """Return the name and the tensor of the largest weight."""
    assert isinstance(extractor, TorchExtractor)
    held = {name: one for name, one in extractor.held_tensors().items() if one.is_floating_point()}
    return max(held.items(), key=lambda item: item[1].numel())


def flip(tensor: Tensor, bit: int) -> None:
    """Flip one bit of the tensor's largest number."""
    numbers = tensor.detach().view(-1)
    place = int(numbers.abs().argmax())
    integers = numbers.view({4: torch.int32, 2: torch.int16}[numbers.element_size()])
    integers[place] ^= 1 << bit


@pytest.mark.parametrize("bit", [0, 22, 29, 30, 31])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_flipped_bit_of_a_weight_is_found(bit: int, dtype: Dtype):
    """The comparison of weights finds every flipped bit, even one that is harmless.

    Bit 0 is the last of the mantissa. It changes one product by less than the rounding error of a layer's
    sum, so no result shows it. Bit 22 is the first of the mantissa. Bit 29 belongs to the exponent: without
    it the weight is nearly 0. Bit 31 is the sign. (The bits of bfloat16 are the upper half of these.)
    """
    extractor = convolutions(dtype=dtype)
    flip(extractor.second, bit if dtype == "float32" else max(0, bit - 16))
    says = failures(extractor, convolutions)
    assert "the weight second on the device is not what was loaded" in says


@pytest.mark.parametrize("name", ["qwen3-tts", "ecapa"])
def test_a_flipped_bit_in_a_real_encoder_is_found(name: str):
    """The flipped bit is the last of the mantissa of one weight among thousands.

    The weights of CAM++ are inside onnxruntime and cannot be compared, so only a bit that changes the
    embedding is found there.
    """
    engine = ENGINES[name]
    extractor = engine.load()
    where, weight = first_weight(extractor)
    flip(weight, 0)
    says = failures(extractor, engine.load, BUILT_IN[engine.profile].tensors)
    assert says == [f"the weight {where} on the device is not what was loaded"]


def test_a_flipped_bit_that_matters_is_seen_in_the_encoding_alone():
    """The proof also finds memory that is wrong only during a computation.

    Bit 30 is the highest of the exponent: a weight below 2 becomes 2^128 times as large, and every result
    after it exceeds all limits.
    """
    extractor = convolutions()
    flip(extractor.second, 30)
    assert [one.partition(":")[0] for one in failures(extractor, convolutions)][:2] == ["codes", "embedding"]


# --- what is served together


class Batching(Convolutions):
    """Encodes several clips in one batch."""

    batch_seconds = 60.0

    def _encode_all(self, prepared: Sequence[Tensor]) -> list[Tensor]:
        return [self._encode(clip) for clip in prepared]


class MixingUp(Batching):
    def _encode_all(self, prepared: Sequence[Tensor]) -> list[Tensor]:
        encoded = super()._encode_all(prepared)
        return [encoded[0], *(0 * one for one in encoded[1:])]


def test_results_that_are_wrong_only_in_a_batch_are_found():
    """A worker encodes both single clips and batches."""
    assert failures(convolutions(Batching), convolutions) == []
    assert len(failures(convolutions(MixingUp), convolutions)) == 2


# --- remembering


class Proofs:
    """Makes proofs that are kept in a folder, and counts how often a trusted copy was loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded = 0

    def made(self, extractor: Extractor | None = None, **machine: str) -> bool:
        """Return whether the proof was made now, and not remembered."""
        loaded = self.loaded
        self.prove(extractor, **machine)
        return self.loaded > loaded

    def prove(self, extractor: Extractor | None = None, **machine: str) -> float:
        def trusted() -> Extractor:
            self.loaded += 1
            return convolutions()

        kept, described = KeptProofs(self.folder), {"device": "cpu", "torch": "2.13.0", **machine}
        return prove_once(extractor or convolutions(), trusted, SPECS, machine=described, kept=kept)


@pytest.fixture
def proofs(tmp_path: Path) -> Proofs:
    return Proofs(tmp_path / "proofs")


def test_a_proof_that_held_is_not_made_again_after_a_restart(proofs: Proofs):
    assert [proofs.made(), proofs.made()] == [True, False]
    assert proofs.loaded == 1


def test_a_remembered_proof_keeps_its_time(proofs: Proofs, monkeypatch: pytest.MonkeyPatch):
    """An operator sees how old the proof is by which a worker serves."""
    monkeypatch.setattr(proof.time, "time", lambda: 1000.0)
    first = proofs.prove()
    monkeypatch.setattr(proof.time, "time", lambda: 9000.0)
    assert (first, proofs.prove()) == (1000.0, 1000.0)


@pytest.mark.parametrize(
    "changed", [{"torch": "2.14.0"}, {"device": "cuda"}, {"gpu_uuid": "b"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}]
)
def test_it_is_made_again_on_another_machine(proofs: Proofs, changed: dict[str, str]):
    """Another device, version or choice of kernels may give another result."""
    assert [proofs.made(), proofs.made(**changed)] == [True, True]


def test_it_is_made_again_for_another_encoder(proofs: Proofs):
    class Newer(Convolutions):
        code_version = 2

    assert [proofs.made(), proofs.made(convolutions(Newer))] == [True, True]


def test_a_proof_that_failed_is_never_remembered(proofs: Proofs):
    """A repaired device must be accepted later, and a broken one must be found again."""
    for _ in range(2):
        with pytest.raises(EncoderUnproven) as caught:
            proofs.made(convolutions(WrongConvolutions))
        assert caught.value.message.startswith("voxcpm2: the encoder computes something else on this device")
        assert "% of the codes are equal, at least 95% are expected; embedding: the cosine" in str(
            caught.value
        )
    assert proofs.loaded == 2
    assert list(proofs.folder.glob("*")) == []


@pytest.mark.parametrize("content", ["", "[]", '{"about": 1}'])
def test_a_remembered_proof_that_is_damaged_counts_for_nothing(proofs: Proofs, content: str):
    proofs.made()
    [kept] = proofs.folder.iterdir()
    kept.write_text(content)
    assert proofs.made()
    assert json.loads(kept.read_text())["about"]["machine"]["torch"] == "2.13.0"


def test_only_the_newest_proofs_are_remembered(proofs: Proofs, monkeypatch: pytest.MonkeyPatch):
    """The folder must not grow without bound over hundreds of upgrades."""
    monkeypatch.setattr(proof, "_MOST_KEPT", 2)
    kept = KeptProofs(proofs.folder)
    for number in range(4):
        kept.keep({"fingerprint": number}, [], at=number)
        for path in proofs.folder.iterdir():
            os.utime(path, (path.stat().st_mtime - 10,) * 2)
    assert [kept.made_at({"fingerprint": number}) for number in range(4)] == [None, None, 2, 3]


def test_a_folder_that_cannot_be_written_costs_time_alone(proofs: Proofs):
    proofs.folder.write_text("a file where the folder should be")
    with capture_logs() as lines:
        assert proofs.made()
    assert [line["event"] for line in lines] == ["proof.held", "proof.not_kept"]


def test_what_kernels_are_chosen_by_belongs_to_the_machine(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a proof made with other kernels would be accepted."""
    before = machine_description(torch.device("cpu"))
    assert before["torch"] == torch.__version__
    assert "oneDNN" in before["torch_build"] or "MKL-DNN" in before["torch_build"]
    assert before["our_code"]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert machine_description(torch.device("cpu")) == before | {"ONEDNN_MAX_CPU_ISA": "AVX2"}


def test_an_extractor_says_what_it_computes_on_beside_its_fingerprint():
    """Workers on different machines make the same artifact, so the machine is not in the fingerprint."""
    on_cpu = convolutions()
    elsewhere = Convolutions(Loading(profile=BUILT_IN["voxcpm2"], source=UntrainedWeights(), device="meta"))
    assert on_cpu.computed_on.device == "cpu"
    assert torch.backends.cpu.get_cpu_capability() in (on_cpu.computed_on.instruction_set or "")
    assert on_cpu.computed_on.torch == torch.__version__
    assert elsewhere.computed_on != on_cpu.computed_on
    assert elsewhere.fingerprint == on_cpu.fingerprint


def test_the_clip_is_short_and_of_a_rate_that_no_encoder_takes():
    """Each second makes starting slower, and the proof covers the resampler, too."""
    assert max(proof._CLIP_SECONDS) <= 3
    assert proof._CLIP_RATE not in {one.sample_rate for one in BUILT_IN.values()}


def test_modules_and_tensors_an_extractor_keeps_are_all_seen():
    """Tensors of a model inside another object are found, too."""
    held = load_tiny().held_tensors()
    assert any(name.startswith("_codec.model.") for name in held)
    assert any(name.startswith("_speaker_encoder.") for name in held)
    module = nn.Linear(2, 2)
    extractor = convolutions()
    extractor.extra = module  # type: ignore[attr-defined]
    assert {"first", "second", "extra.weight", "extra.bias"} <= extractor.held_tensors().keys()
