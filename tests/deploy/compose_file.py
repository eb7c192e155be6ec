"""Reading docker-compose.yml as compose reads it, without an engine: anchors, and variables with defaults."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
PROFILES = ("gpu", "monitoring")

REQUIRED = {"WEIGHTS": "untrained"}
"""The variables without a default, and what the tests set them to."""

Service = dict[str, Any]


def parsed() -> dict[str, Any]:
    """All of it, with no variable set but those that must be."""
    text = re.sub(r"(?<!\$)\$\{\w+:-([^}]*)\}", r"\1", FILE.read_text())
    text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: REQUIRED[found[1]], text)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def services() -> dict[str, Service]:
    """Return the services by name."""
    found: dict[str, Service] = parsed()["services"]
    return found


def words(command: list[str] | str) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command]


def merged(folder: Path, *files: Path) -> dict[str, Any]:
    """Return what podman-compose makes of the files, or of docker-compose.yml alone, with all profiles on.
    `folder` holds the stub of a container engine that podman-compose calls.
    """
    stub = folder / "podman"
    stub.write_text("#!/bin/sh\necho podman version 5.0.0\n")
    stub.chmod(0o755)
    command = [Path(sys.executable).parent / "podman-compose"]
    for file in files or (FILE,):
        command += ["-f", file]
    for profile in PROFILES:
        command += ["--profile", profile]
    environment = {**os.environ, **REQUIRED, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run([*command, "config"], env=environment, capture_output=True, text=True, check=True)
    parsed: dict[str, Any] = yaml.safe_load(done.stdout)
    return parsed
