"""Tests of what happens to tensors on the way into an artifact."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.shared.model.packaging import package
from services.shared.model.profiles import BUILT_IN
from services.shared.model.records import ClipRecord, Version
from speaker_registry.artifact import Artifact, ComputedOn, TensorSpec
from speaker_registry.errors import InvalidArtifact

SPECS = {
    "always": TensorSpec(dtype="F32", shape=(2,)),
    "spoken": TensorSpec(dtype="F32", shape=(2,), needs_ref_text=True),
}
PROFILE = replace(BUILT_IN["ecapa-voxceleb"], tensors=SPECS)
TENSORS = {"always": np.ones(2, np.float32)}


CLIP = ClipRecord(
    sha256="a" * 64,
    size=1000,
    mime_type="audio/wav",
    seconds=4.0,
    sample_rate=24_000,
    channels=1,
    rendition_sha256="b" * 64,
)


def version(ref_text: str | None) -> Version:
    return Version(
        vuid="0" * 32, number=1, name="Alice", source="audio", consent="cons_1", clip=CLIP, ref_text=ref_text
    )


def packaged(*names: str, ref_text: str | None) -> Artifact:
    tensors = {name: np.ones(2, np.float32) for name in names}
    data, record = package(version(ref_text), PROFILE, tensors, fingerprint="sha256:1", object_id="1")
    artifact = Artifact.parse(data)
    assert (record.digest, record.content_digest) == (artifact.digest, artifact.content_digest)
    assert record.tensors == artifact.info
    return artifact


def test_a_tensor_that_needs_a_transcript_is_left_out_without_one() -> None:
    """An engine would take it for what follows a text that is not there."""
    assert packaged("always", "spoken", ref_text="Hello.").tensors.keys() == {"always", "spoken"}
    assert packaged("always", "spoken", ref_text=None).tensors.keys() == {"always"}


def test_with_a_transcript_it_is_asked_for() -> None:
    assert packaged("always", ref_text=None).tensors.keys() == {"always"}
    with pytest.raises(InvalidArtifact, match=r"missing tensors \['spoken'\]"):
        packaged("always", ref_text="Hello.")


def test_what_the_profile_does_not_know_is_refused_and_not_left_out() -> None:
    with pytest.raises(InvalidArtifact, match=r"unexpected tensors \['unknown'\]"):
        packaged("always", "unknown", ref_text=None)


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_whatever_length_is_said_to_be_used_is_packaged_or_refused(used_seconds: float) -> None:
    """Lengths are rounded to microseconds: `5e-324` is above zero before that, and not after it."""
    with suppress(InvalidArtifact):
        data, _ = package(
            version(None), PROFILE, TENSORS, fingerprint="sha256:1", object_id="1", used_seconds=used_seconds
        )
        assert Artifact.parse(data).manifest.used_seconds == round(used_seconds, 6) > 0


def test_a_length_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArtifact, match="4e-07 s of audio are said to be used"):
        package(version(None), PROFILE, TENSORS, fingerprint="sha256:1", object_id="1", used_seconds=4e-7)


def test_the_manifest_says_which_machine_computed_the_tensors() -> None:
    """If one machine turns out to be broken, its artifacts must be found. Nothing else depends on it."""
    here, there = ComputedOn(device="cpu", instruction_set="AVX512"), ComputedOn(device="cuda", gpu="H200")
    made = [
        package(version(None), PROFILE, TENSORS, fingerprint="sha256:1", object_id="1", computed_on=machine)
        for machine in (here, there, None)
    ]
    assert [Artifact.parse(data).manifest.computed_on for data, _ in made] == [here, there, None]
    assert len({record.content_digest for _, record in made}) == 1
    assert {record.fingerprint for _, record in made} == {"sha256:1"}


@pytest.mark.parametrize(
    ("machine", "shown"),
    [
        (ComputedOn(device="cuda", gpu="NVIDIA H200", torch="2.13.0"), "cuda, NVIDIA H200, torch 2.13.0"),
        (ComputedOn(device="cpu"), "cpu"),
    ],
)
def test_a_machine_is_shown_by_what_is_known_of_it(machine: ComputedOn, shown: str) -> None:
    assert str(machine) == shown


@pytest.mark.parametrize("custom", [True, False])
def test_the_manifest_says_whether_the_weights_are_custom(custom: bool) -> None:
    """It comes from the facts behind the fingerprint, so no two places can disagree."""
    facts = {"weights": {"untrained": False, **({"custom": True} if custom else {})}}
    data, _ = package(version(None), PROFILE, TENSORS, fingerprint="sha256:1", object_id="1", extractor=facts)
    artifact = Artifact.parse(data)
    assert artifact.manifest.custom_weights is custom
    assert ("; custom weights; " in repr(artifact)) is custom
