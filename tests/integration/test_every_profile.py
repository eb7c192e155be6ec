"""Tests that one upload serves a whole fleet: every profile is required at once, and each is independent. The
encoders are light ones here; everything around them is real.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from services.extractor_worker.engines.catalogue import BUILT_IN as EXTRACTORS
from services.shared.model.profiles import BUILT_IN
from speaker_registry import RegistryClient
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import ArtifactFailed
from tests.process_load import noise_clip
from tests.processes import QUICK, RegistryProcesses

ALL = sorted(EXTRACTORS)
FAILS = "qwen3-tts-1.7b"


def every_profile(folder: Path, **environment: str) -> RegistryProcesses:
    """Yield a registry that requires all profiles of each upload, with one worker that serves them all."""
    profiles = ",".join(ALL)
    both = {"SPEAKER_PROFILES": profiles, "SPEAKER_EXTRACTOR_PROFILES": profiles}
    return RegistryProcesses(folder, environment={**QUICK, **environment}, profiles=both)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcesses]:
    with every_profile(tmp_path_factory.mktemp("every")) as running:
        yield running


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcesses]:
    """Make one profile fail for every clip."""
    with every_profile(tmp_path_factory.mktemp("failing"), LIGHT_WORKER_FAILS=FAILS) as running:
        yield running


def test_one_upload_brings_the_artifact_of_every_profile(registry: RegistryProcesses):
    with RegistryClient(registry.urls[0], cache=None) as client:
        client.register("alice", noise_clip(1)[0], consent="yes", ref_text="What is said.")
        ready = client.wait_ready("alice@1", timeout=60)
        assert sorted(status.profile for status in ready.artifacts) == ALL
        seconds = client.version("alice@1").audio.seconds
        for name in ALL:
            artifact, profile = client.fetch("alice@1", name), BUILT_IN[name]
            assert artifact.manifest.profile == name
            check_tensors(artifact.tensors, profile.tensors, seconds=seconds, frame_rate=profile.frame_rate)
        assert client.fetch("alice@1", "voxcpm2").tensors.keys() == {"ref_audio_feat", "audio_feat"}


def test_a_profile_that_fails_neither_delays_nor_spoils_the_others(failing: RegistryProcesses):
    """A profile that fails neither delays nor spoils the others, and the voice reports which one is missing
    and why.
    """
    with RegistryClient(failing.urls[0], cache=None) as client:
        client.register("alice", noise_clip(1)[0], consent="yes", ref_text="What is said.")
        for name in ALL:
            if name != FAILS:
                assert client.fetch("alice@1", name, wait=60).manifest.profile == name
        with pytest.raises(ArtifactFailed, match=rf"{FAILS}: .*this clip is not for me"):
            client.wait_ready("alice@1", timeout=60)
        states = {status.profile: status for status in client.get("alice").artifacts}
        assert states[FAILS].state == "failed"
        assert "this clip is not for me" in (states[FAILS].error or "")
        assert {one.state for name, one in states.items() if name != FAILS} == {"ready"}


def test_a_clip_without_a_transcript_lacks_only_what_needs_one(registry: RegistryProcesses):
    """A clip without a transcript lacks only the profiles that need one. The answer says so at once, without
    a job that could only fail. An artifact may lack a tensor for the same reason.
    """
    needing = {name for name in ALL if BUILT_IN[name].ref_text_required}
    with RegistryClient(registry.urls[0], cache=None) as client:
        registration = client.register("bob", noise_clip(2)[0], consent="yes")
        assert registration.jobs.keys() == set(ALL) - needing
        for name in registration.jobs:
            client.fetch("bob@1", name, wait=60)
        assert client.fetch("bob@1", "voxcpm2").tensors.keys() == {"ref_audio_feat"}
        told: Mapping[str, str] = {one.profile: one.error or "" for one in client.get("bob").artifacts}
        assert all("needs a transcript" in told[name] for name in needing)
