"""Tests of what an API process loads, and of what it leaves to others."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

ELSEWHERE = ("torch", "transformers", "torchaudio", "av", "soundfile", "scipy", "librosa")
"""Models are the worker's; clips are decoded in processes of their own, which share nothing with this one."""
WEB_SERVER = ("fastapi", "uvicorn")


@pytest.mark.parametrize("module", ["services.registry_api.app", "services.registry_api.commands.serve"])
def test_the_api_loads_neither_models_nor_decoders(module: str):
    """Torch takes a gigabyte and ten seconds; a decoder's fault must not be in the process that serves."""
    program = f"import sys, {module}; print([name for name in {ELSEWHERE} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["new_key", "sweep", "adopt_bucket"])
def test_a_command_does_not_load_the_web_server(command: str):
    """A scheduled sweep runs in a small container, and takes a second."""
    modules = f"services.registry_api.__main__, services.registry_api.commands.{command}"
    program = f"import sys, {modules}; print([name for name in {WEB_SERVER} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
