"""Runs the command line for tests of moving voices, and reads its JSON."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from speaker_registry import RegistryClient, cli
from tests.integration.api.registry import Registry


class Outcome(NamedTuple):
    status: int
    document: Any

    @property
    def states(self) -> dict[str, str]:
        """Map the voices of an import to what became of them."""
        return {voice["name"]: voice["state"] for voice in self.document["voices"]}


Run = Callable[..., Outcome]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command with `--json` against a registry."""

    def call(registry: Registry, *words: object) -> Outcome:
        status = cli.main(["--url", registry.url, "--json", *map(str, words)])
        said = capsys.readouterr()
        return Outcome(status, _document(said.err if '{"error"' in said.err else said.out))

    return call


def _document(said: str) -> Any:
    """Return the JSON document of an output into which the registry of this process also logs."""
    start = said.index('{"error"') if '{"error"' in said else said.index("{\n")
    return json.JSONDecoder().raw_decode(said[start:])[0]


def number_of_versions(registry: Registry) -> int:
    with RegistryClient(registry.url) as client:
        return sum(voice.versions for voice in client.list())
