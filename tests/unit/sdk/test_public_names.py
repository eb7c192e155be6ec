"""Tests of the names that the package promises, and that importing it costs nothing until it is used."""

import importlib
import inspect
import subprocess
import sys

import pytest

import speaker_registry
from speaker_registry.async_client import AsyncRegistryClient
from speaker_registry.client import RegistryClient

PUBLIC = {
    "Alias",
    "VoiceAlias",
    "VoiceChange",
    "ApiKey",
    "InvalidApiKey",
    "NewApiKey",
    "PermissionDenied",
    "Quota",
    "Rate",
    "ResolvedArtifact",
    "Usage",
    "Artifact",
    "ArtifactCache",
    "ArtifactDescriptor",
    "ArtifactFailed",
    "ArtifactNotReady",
    "ArtifactStatus",
    "AsyncRegistryClient",
    "CacheStats",
    "Campaign",
    "Clip",
    "ClipPicture",
    "PicturesFailed",
    "ReferenceAudio",
    "Conflict",
    "DigestMismatch",
    "File",
    "InvalidRequest",
    "Job",
    "JobSummary",
    "Manifest",
    "NotFound",
    "Profile",
    "ProfileChange",
    "Readiness",
    "Registration",
    "RegistryClient",
    "SpeakerRegistryError",
    "Unavailable",
    "Voice",
    "VoiceVersion",
}


def test_exactly_these_names_are_public():
    """Each is a promise; none comes or goes by accident."""
    assert set(speaker_registry.__all__) == PUBLIC
    assert set(dir(speaker_registry)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_name_is_there(name: str):
    """They are loaded late, so a typo would only show in somebody's program."""
    home = importlib.import_module(f"speaker_registry.{speaker_registry._HOME_OF[name]}")
    assert getattr(speaker_registry, name) is getattr(home, name)


def test_an_unknown_name_is_an_attribute_error():
    """`hasattr` and `from … import` rely on it."""
    with pytest.raises(AttributeError, match="nonsense"):
        speaker_registry.nonsense  # noqa: B018


def test_the_version_is_that_of_the_package():
    """`--version` and the user agent say the same."""
    assert speaker_registry.__version__[0].isdigit()


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.processes
def test_importing_the_package_loads_nothing():
    """It is imported by services that need only the wire contract, and by engines at start-up."""
    heavy = {"httpx", "numpy", "pydantic", "asyncio", "tqdm", "argparse", "speaker_registry.cli"}
    assert not loaded_by("import speaker_registry") & heavy


@pytest.mark.processes
def test_the_client_loads_no_command_line():
    """An engine has none."""
    loaded = loaded_by("from speaker_registry import RegistryClient")
    assert "httpx" in loaded
    assert not loaded & {
        "tqdm",
        "speaker_registry.cli",
        "speaker_registry.async_client",
        "fastapi",
        "torch",
        "redis",
    }


@pytest.mark.processes
def test_help_is_shown_without_loading_the_client():
    """Tab completion and a look at the options should be quick."""
    loaded = loaded_by("from speaker_registry.cli import main; main(['list', '--help'])")
    assert not loaded & {"httpx", "numpy", "pydantic", "tqdm"}


def test_both_clients_have_the_same_methods_with_the_same_arguments():
    """A developer who knows one client knows the other."""

    def methods(cls: type) -> dict[str, list[str]]:
        return {
            name: [str(p).partition(":")[0] for p in inspect.signature(member).parameters.values()]
            for name, member in inspect.getmembers(cls, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(RegistryClient) == methods(AsyncRegistryClient)
