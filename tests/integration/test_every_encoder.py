"""A test of all encoders in one real worker, at their published size, on a spoken clip. The weights are
random; other tests compare what each encoder computes with its reference.
"""

from pathlib import Path

import pytest

from services.extractor_worker.engines.catalogue import BUILT_IN as EXTRACTORS
from services.shared.model.profiles import BUILT_IN
from speaker_registry import RegistryClient
from speaker_registry.artifact import check_tensors
from tests.processes import RegistryProcesses

CLIPS = Path(__file__).parents[2] / "examples/clips"
ALL = ",".join(sorted(EXTRACTORS))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_one_spoken_clip_becomes_the_artifact_of_every_engine(tmp_path: Path):
    profiles = {"SPEAKER_PROFILES": ALL, "SPEAKER_EXTRACTOR_PROFILES": ALL}
    untrained = {"SPEAKER_EXTRACTOR_WEIGHTS": "untrained", "SPEAKER_EXTRACTOR_THREADS": "2"}
    registry = RegistryProcesses(
        tmp_path, environment=untrained, profiles=profiles, worker="services.extractor_worker"
    )
    with registry, RegistryClient(registry.urls[0], cache=None) as client:
        text = (CLIPS / "wren.txt").read_text()
        client.register("wren", CLIPS / "wren.flac", consent="synthesised", ref_text=text)
        client.wait_ready("wren@1", timeout=900)
        seconds = client.version("wren@1").audio.seconds
        for name in sorted(EXTRACTORS):
            artifact, profile = client.fetch("wren@1", name), BUILT_IN[name]
            check_tensors(artifact.tensors, profile.tensors, seconds=seconds, frame_rate=profile.frame_rate)
            assert artifact.manifest.untrained
        assert registry.log().count("artifact.published") == len(EXTRACTORS)
