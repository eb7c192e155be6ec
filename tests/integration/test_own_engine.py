"""Tests that the example of a custom profile installs as an outside developer would install it, and works."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.embedded.settings import EmbeddedSettings
from services.embedded.supervisor import EmbeddedRegistry
from services.shared.model.profiles import ProfileCatalogue
from speaker_registry import RegistryClient

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/own_engine"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example without a network."""
    source, target = tmp_path_factory.mktemp("source") / "own_engine", tmp_path_factory.mktemp("packages")
    shutil.copytree(EXAMPLE, source)  # a build leaves things behind
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    words = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def run(packages: Path, *words: str) -> str:
    """Run Python where the package is installed and return what it prints."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_profile_is_in_the_catalogue(packages: Path):
    """The example's profile is in the catalogue, so it may be required of every upload. An API that reads it
    loads no torch.
    """
    program = (
        "import sys; from services.shared.model.profiles import ProfileCatalogue;"
        "profile = ProfileCatalogue.load(['loudness']).required_profiles[0];"
        "print(profile.name, profile.frame_rate, 'torch' in sys.modules)"
    )
    assert run(packages, "-c", program).split() == ["loudness", "50", "False"]
    assert "loudness" not in ProfileCatalogue.load([]).names, "it comes from the package alone"


MAKING = """
import json, math
import numpy as np
from services.extractor_worker.engines.catalogue import load_extractor
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import ProfileCatalogue
from speaker_registry.artifact import check_tensors

profile = ProfileCatalogue.load([]).get("loudness")
extractor = load_extractor(Loading(profile=profile, source=UntrainedWeights()))
time = np.arange(44_100) / 44_100
clips = [
    ReferenceAudio((level * np.sin(2 * math.pi * 440 * time)).astype(np.float32), 44_100)
    for level in (1.0, 0.1, 0.0)
]
encoded = extractor.encode([extractor.prepare(clip) for clip in [*clips, extractor.example()]])
made = [extractor.finish(one) for one in encoded]
for clip, tensors in zip(clips, made):
    check_tensors(tensors, profile.tensors, seconds=clip.seconds, frame_rate=profile.frame_rate)
levels = [float(np.median(tensors["level"])) for tensors in made[:3]]
frames = made[0]["level"].shape
print(json.dumps([extractor.profile_name, extractor.fingerprint.untrained, frames, levels]))
"""


def test_it_imports_nothing_that_no_wheel_has():
    """The example imports nothing that is in no wheel. A package that builds on the registry's contract is
    installed where the services' source is not.
    """
    imported = set()
    for module in EXAMPLE.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
    assert imported == {"loudness", "speaker_registry", "torch", "typing"}


def test_the_contract_needs_no_torch():
    """The contract needs no torch. API processes read profiles, and have no torch."""
    program = "import sys, speaker_registry.engine; print('torch' in sys.modules, 'services' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["False", "False"]


def test_its_extractor_makes_checked_artifacts(packages: Path):
    """The extractor makes checked artifacts as the built-in ones do: from a clip to tensors that the profile
    accepts.
    """
    name, untrained, frames, levels = json.loads(run(packages, "-c", MAKING))
    assert (name, untrained, frames) == ("loudness", False, [50])
    assert levels == pytest.approx([-3.01, -23.01, -100], abs=0.05), "of sines at full scale and a tenth"


def test_it_has_nothing_to_download(packages: Path):
    """The profile has nothing to download, and the command knows it like any other profile."""
    words = ("-m", "services.extractor_worker", "download", "--profiles", "loudness")
    assert "loudness needs no files" in run(packages, *words)


def test_a_registry_serves_it(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A registry serves the profile from an upload to the fetched artifact, in the
    processes of production.
    """
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.syspath_prepend(str(packages))  # requested profiles are looked up here as well
    settings = EmbeddedSettings(data=tmp_path / "data", port=0, profiles="loudness")
    with EmbeddedRegistry(settings) as registry, RegistryClient(registry.url) as client:
        registered = client.register("Robin", ROOT / "examples/clips/robin.flac", consent="cons_1")
        client.wait_ready(registered.reference)
        artifact = client.fetch(registered.reference, profile="loudness")
    assert artifact.tensors["level"].shape == (314,)
    assert not artifact.manifest.untrained
