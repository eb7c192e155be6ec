"""The images hold what the processes need and no more, as far as a Dockerfile shows that. None is built."""

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.dockerfile import FILE, lineage, read
from tests.deploy.environment import check

ROOT = FILE.parents[2]
IMAGES = ["api", "worker", "worker-cuda"]
STAGES = read()


def test_hadolint_has_nothing_to_say():
    """It knows what goes wrong in Dockerfiles, and shellcheck looks at what they run."""
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, FILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_in_particular_and_says_whether_it_is_healthy(image: str):
    """Each of these is what Kubernetes, compose and scanners look for."""
    instructions = [pair for stage in lineage(STAGES, image) for pair in stage.instructions]
    words = dict(instructions)
    assert words["USER"] == "10001:10001"
    assert [word for word, _ in instructions].count("HEALTHCHECK") == 1
    command = words["HEALTHCHECK"].partition("CMD ")[2]
    for words_of in (json.loads(command), json.loads(words["ENTRYPOINT"])):
        module = words_of[words_of.index("-m") + 1]
        assert find_spec(module), f"there is no module {module}"


@pytest.mark.parametrize("image", IMAGES)
def test_the_environment_of_an_image_is_one_that_its_processes_read(image: str):
    """A misspelt variable would simply do nothing."""
    environment = {
        name: value for stage in lineage(STAGES, image) for name, value in stage.environment().items()
    }
    check({name: value for name, value in environment.items() if not name.startswith(("PIP_", "PYTHON"))})


def test_what_is_copied_is_there_and_nothing_else_is_sent_to_the_builder():
    """Data, weights or keys in the folder must not end up in a layer."""
    copied = {
        source
        for stage in STAGES.values()
        for rest in stage.all("COPY")
        if not rest.startswith("--from=")
        for source in rest.split()[:-1]
    }
    everything, *rules = (
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    )
    assert everything == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)


def test_no_image_has_what_only_builds_or_tests():
    """The final stages take the environment as it was installed, and pip is not in it."""
    for image in IMAGES:
        for stage in lineage(STAGES, image):
            assert "pip install" not in " ".join(stage.all("RUN"))
        [copy] = [rest for rest in STAGES[image].all("COPY") if "/opt/venv" in rest]
        built = STAGES[copy.split()[0].removeprefix("--from=")]
        assert built.all("RUN")[-1].endswith("pip uninstall --yes pip")


def test_the_api_image_has_no_torch():
    """It is an eighth of the size without."""
    installed = " ".join(rest for stage in lineage(STAGES, "build-api") for rest in stage.all("RUN"))
    assert "'.[api,traces]'" in installed
    assert "torch" not in installed


def test_each_image_of_a_worker_has_torchaudio_from_the_index_of_its_torch():
    """torchaudio loads only beside a torch for the same version of CUDA, or for CPUs as it is itself."""
    installed = {
        image: " ".join(rest for stage in lineage(STAGES, f"build-{image}") for rest in stage.all("RUN"))
        for image in IMAGES
    }
    workers = ["worker", "worker-cuda"]
    assert [image for image in IMAGES if "'.[worker,torchaudio,traces]'" in installed[image]] == workers
    assert '--index-url "${TORCH_INDEX}" torch torchaudio' in installed["worker"]
    assert "--index-url" not in installed["worker-cuda"]


def test_every_dependency_of_an_image_is_pinned():
    """The same commit gives the same image, a year later as well."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"],
        *project["build-system"]["requires"],
        *(
            requirement
            for extra in ("shared", "api", "worker", "torchaudio", "traces")
            for requirement in extras[extra]
        ),
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    names = {canonicalize_name(Requirement(requirement).name) for requirement in wanted}
    assert names - pinned == {"speaker-registry"}
    assert STAGES["build"].environment()["PIP_CONSTRAINT"] == "/source/constraints.txt"
