"""Tests of what a worker imports before it can tell what is wrong, and to find a remembered proof."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

_SLOW = ("torch", "transformers", "scipy", "onnxruntime", "av")


def imported_after(program: str, **environment: str) -> list[str]:
    """Run a program and return which of the libraries that take long to import it has imported."""
    tail = f"; import sys; print(*(one for one in {_SLOW} if one in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program + tail],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    return done.stdout.splitlines()[-1].split()


def test_a_worker_reads_its_settings_before_it_imports_what_is_slow():
    """torch takes seconds to import. A mistyped setting, of which there is one in every new deployment, is
    told at once.
    """
    program = "from services.extractor_worker.worker import work; assert work() == 1"
    assert imported_after(program, SPEAKER_EXTRACTOR_THREADS="none") == []


def test_a_worker_opens_its_bucket_before_it_imports_what_is_slow(tmp_path: Path):
    """A bucket that does not exist is found out at once as well."""
    program = "from services.extractor_worker.worker import work; assert work() == 1"
    settings = {
        "SPEAKER_EXTRACTOR_WEIGHTS": "untrained",
        "SPEAKER_STORE_URL": (tmp_path / "nothing").as_uri(),
        "SPEAKER_REDIS_URL": "redis://127.0.0.1:1/0",
    }
    assert imported_after(program, **settings) == []


def test_the_machine_is_described_without_importing_libraries():
    """Every start describes the machine, to look for a remembered proof. An encoder that needs only torch
    must not wait for the libraries of others.
    """
    program = (
        "import torch; from services.extractor_worker.device.machine import machine_description; "
        "assert machine_description(torch.device('cpu'))['numpy']"
    )
    assert imported_after(program) == ["torch"]
