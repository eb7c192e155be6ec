"""Tests by schemathesis against the OpenAPI document. Whatever is requested, valid or not, in one call or in
several that follow from each other, the document names the answer, and there is no 5xx.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from services.registry_api.keys.api_keys import new_token
from services.shared.configuration.access import AccessSettings, RateSettings
from tests.integration.api.conftest import Start
from tests.integration.api.registry import Registry
from tests.integration.api.schemathesis_hooks import NAMES

ROOT = Path(__file__).parents[3]
KEY = new_token()
CLOSED = AccessSettings(bootstrap_key=SecretStr(str(KEY)))
NO_LIMITS = RateSettings(failures_per_minute=1_000_000, requests_per_minute=None, uploads_per_minute=None)
BEARER = {"Authorization": f"Bearer {KEY}"}
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "4")
"""The number of examples of each operation."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


ALL_PHASES = "examples,coverage,fuzzing,stateful"


def schemathesis(registry: Registry, folder: Path, *words: str, phases: str) -> str:
    """Run all checks of schemathesis and return its output. Fails if it found an error."""
    command = shutil.which("schemathesis", path=Path(sys.executable).parent)
    assert command
    run = subprocess.run(
        [
            command,
            f"--config-file={Path(__file__).with_name('schemathesis.toml')}",
            "run",
            f"{registry.url}/openapi.json",
            f"--phases={phases}",
            f"--max-examples={EXAMPLES}",
            "--generation-deterministic",
            "--no-color",
            *words,
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SCHEMATHESIS_HOOKS": "tests.integration.api.schemathesis_hooks",
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    short = "\n".join(line[:300] for line in run.stdout.splitlines())  # some hold a whole clip
    assert run.returncode == 0, short[-8000:] + run.stderr
    return run.stdout


def filled(registry: Registry, **options: dict[str, str]) -> Registry:
    """Fill a registry with voices, one of them with its artifact, and return it."""
    for name in NAMES[:3]:
        registry.upload(name, **options)
    registry.worker.finish_all(NAMES[0])
    return registry


def test_every_answer_is_documented(start: Start, tmp_path: Path):
    """Every answer is documented where no key is needed. Keys make no difference to which
    requests are valid.
    """
    registry = filled(start())
    with registry.worker.working():
        schemathesis(registry, tmp_path, phases="examples,fuzzing")


def test_every_answer_is_documented_with_a_key(start: Start, tmp_path: Path):
    """Every answer is documented where a key is needed. Requests without it or with another one are refused,
    and schemathesis tries these too.
    """
    registry = filled(start(access=CLOSED, rates=NO_LIMITS), headers=BEARER)
    with registry.worker.working():
        said = schemathesis(registry, tmp_path, "-H", f"Authorization: Bearer {KEY}", phases=ALL_PHASES)
    assert "Stateful" in said


def test_every_answer_to_a_stranger_is_documented(start: Start, tmp_path: Path):
    """Every answer to a request without a key is documented: it is always 401, and nothing changes."""
    registry = filled(start(access=CLOSED, rates=NO_LIMITS), headers=BEARER)
    before = registry.stored()
    words = "--exclude-checks=positive_data_acceptance"
    schemathesis(registry, tmp_path, words, phases="examples,fuzzing")
    assert registry.stored().objects == before.objects
