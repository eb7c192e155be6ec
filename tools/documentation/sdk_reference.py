"""Writes the page about the SDK: every public name, under the module that defines it. The generator of the
site replaces each `:::` with the signature and the docstring.
"""

import importlib
import inspect
from collections import defaultdict

import speaker_registry
from speaker_registry import errors

_CLIENTS = {"client", "async_client"}
_TITLES = {
    "client": "Client",
    "async_client": "Client for asyncio",
    "cache": "Cache",
    "calls": "Answers of calls",
    "waiting": "Waiting",
    "fetching": "Files and clips",
    "artifact": "Artifacts",
    "reference_audio": "Reference audio",
    "schemas": "Answers of the registry",
}
_INTRODUCTION = """# Python SDK

All names of this page but the errors can be imported from `speaker_registry`.
[Using the registry](../docs/usage.md#sdk) shows them at work.
"""


def sdk_reference() -> str:
    """Return the page as Markdown."""
    homes = defaultdict(list)
    for name in speaker_registry.__all__:
        path = f"{getattr(speaker_registry, name).__module__}.{name}"
        homes[path.split(".")[1]].append(path)
    homes.pop("errors")
    sections = [_section(_TITLES.get(module, module), module, homes[module]) for module in _ordered(homes)]
    return "\n".join([_INTRODUCTION, *sections, _section("Errors", "errors", _errors())])


def _ordered(homes: dict[str, list[str]]) -> list[str]:
    return sorted(homes, key=lambda module: [*_TITLES, module].index(module))


def _errors() -> list[str]:
    """Return the paths of the classes of errors, which are all exported by their module."""
    module = importlib.import_module(errors.__name__)
    return [
        f"{errors.__name__}.{name}"
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, errors.SpeakerRegistryError)
    ]


def _section(title: str, module: str, paths: list[str]) -> str:
    blocks = [f"::: {path}\n{_client_options(path) if module in _CLIENTS else ''}" for path in paths]
    return "\n".join([f"## {title}\n", *blocks])


def _client_options(path: str) -> str:
    """Return the options of a client's block: its members in the order of its bases, which are its subjects.

    The generator would begin with the last base.
    """
    client = getattr(speaker_registry, path.rpartition(".")[2])
    names = [name for cls in client.__mro__ for name in (*inspect.get_annotations(cls), *vars(cls))]
    members = [name for name in dict.fromkeys(names) if not name.startswith("_")]
    return f"    options:\n      inherited_members: true\n      members: {members}\n"
