"""schemathesis against the OpenAPI document: whatever is asked, valid or not, one call or several that follow
from each other, the answer is one that the document names, and no 5xx.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from services.registry_api.keys.api_keys import new_token
from services.shared.configuration.settings import AccessSettings, RateSettings
from tests.integration.api.conftest import Start
from tests.integration.api.registry import Registry
from tests.integration.api.schemathesis_hooks import NAMES

ROOT = Path(__file__).parents[3]
KEY = new_token()
CLOSED = AccessSettings(bootstrap_key=SecretStr(str(KEY)))
NO_LIMITS = RateSettings(failures_per_minute=1_000_000, requests_per_minute=None, uploads_per_minute=None)
BEARER = {"Authorization": f"Bearer {KEY}"}
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "4")
"""Of each operation."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def schemathesis(registry: Registry, folder: Path, *words: str) -> str:
    """All of its phases and checks, as is its way. Returns what it said; fails where it found anything."""
    command = shutil.which("schemathesis", path=Path(sys.executable).parent)
    assert command
    run = subprocess.run(
        [
            command,
            f"--config-file={Path(__file__).with_name('schemathesis.toml')}",
            "run",
            f"{registry.url}/openapi.json",
            "--phases=examples,coverage,fuzzing,stateful",
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
    """With voices to find, one of them with its artifact."""
    for name in NAMES[:3]:
        registry.upload(name, **options)
    registry.worker.finish_all(NAMES[0])
    return registry


def test_every_answer_is_documented(start: Start, tmp_path: Path):
    """Where no key is needed."""
    registry = filled(start())
    with registry.worker.working():
        said = schemathesis(registry, tmp_path)
    assert "Stateful" in said


def test_every_answer_is_documented_with_a_key(start: Start, tmp_path: Path):
    """And a request without it, or with another, is refused: schemathesis tries that too."""
    registry = filled(start(access=CLOSED, rates=NO_LIMITS), headers=BEARER)
    with registry.worker.working():
        schemathesis(registry, tmp_path, "-H", f"Authorization: Bearer {KEY}")


def test_every_answer_to_a_stranger_is_documented(start: Start, tmp_path: Path):
    """Without a key all of it is 401, and nothing changes."""
    registry = filled(start(access=CLOSED, rates=NO_LIMITS), headers=BEARER)
    before = registry.stored()
    schemathesis(registry, tmp_path, "--exclude-checks=positive_data_acceptance")
    assert registry.stored().objects == before.objects
