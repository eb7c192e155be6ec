"""The configuration file of the command line, which the SDK reads too: registries by name, with their keys.

Each context is one registry: its address, an API key and a namespace. A key is never sent to another address
than the one it is kept with. This module sends nothing over the network.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speaker_registry.atomic_files import replacing
from speaker_registry.environment import (
    API_KEY_VARIABLE,
    CONFIG_VARIABLE,
    CONTEXT_VARIABLE,
    NAMESPACE_VARIABLE,
    URL_VARIABLE,
    parse_api_key,
    parse_namespace,
    parse_url,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_FIELDS = {"url", "api_key", "namespace"}
_MAX_BYTES = 1024**2
_LOGIN = "`speaker-registry login NAME --url URL`"


class ContextError(ValueError):
    """The configuration file cannot be used, or has no such context. The message says what helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One registry, and the key with which it is used."""

    url: str
    api_key: str = field(default="", repr=False)
    """Empty for a registry that needs no key."""
    namespace: str = ""
    """Empty for the namespace of the key."""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments for a client. Empty ones are given too, so that the environment does not replace
        them.
        """
        return {"url": self.url, "api_key": self.api_key, "namespace": self.namespace}


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts of a file, and the name of the one that is used unless another one is named."""

    by_name: Mapping[str, Context]
    current: str | None = None

    def get(self, name: str) -> Context:
        """Return a context. Raises `ContextError` if there is none with this name."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise ContextError(f"there is no context {name[:80]!a}; known: {known}. {_LOGIN} makes one")
        return self.by_name[name]

    def with_current(self, name: str, context: Context | None = None) -> "Contexts":
        """Make a context the current one, after replacing it if one is given."""
        by_name = dict(self.by_name) if context is None else {**self.by_name, name: context}
        return Contexts(by_name, current=name)

    def without(self, name: str) -> "Contexts":
        """Remove a context. If it is the current one, there is no current one afterwards."""
        self.get(name)
        by_name = {other: context for other, context in self.by_name.items() if other != name}
        return Contexts(by_name, None if self.current == name else self.current)

    def without_key(self, name: str) -> "Contexts":
        return dataclasses.replace(
            self, by_name={**self.by_name, name: dataclasses.replace(self.get(name), api_key="")}
        )


def config_path() -> Path:
    """Return where the configuration file is: `$SPEAKER_REGISTRY_CONFIG`, or else in the folder that the XDG
    base directory specification names.
    """
    if given := os.environ.get(CONFIG_VARIABLE):
        return Path(given).expanduser()
    xdg = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    folder = xdg if xdg.is_absolute() else Path.home() / ".config"  # the specification ignores relative paths
    return folder / "speaker-registry" / "config.toml"


def parse_context_name(text: str) -> str:
    """Check the name of a context. Raises `ContextError` if it is not accepted."""
    if not _NAME.fullmatch(text):
        raise ContextError(
            f"the name of the context is {text[:80]!a}; accepted: 1 to 64 letters, digits and . _ : -, "
            "beginning with a letter or digit"
        )
    return text


def read_contexts() -> Contexts:
    """Read the configuration file. Without a file there are no contexts.

    Raises:
        ContextError: The file is malformed, or others can read the keys in it.
        OSError: The file cannot be read.
    """
    path = config_path()
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return Contexts({})
    contexts = _parsed(path, content)
    if stat.S_IMODE(mode) & 0o077 and any(one.api_key for one in contexts.by_name.values()):
        raise ContextError(
            f"{path} holds API keys, and other users can use it; `chmod 600 {path}` mends that"
        )
    return contexts


def _parsed(path: Path, content: bytes) -> Contexts:
    if len(content) > _MAX_BYTES:
        raise ContextError(f"{path} has more than {_MAX_BYTES} bytes, so it is no configuration file")
    try:
        return _contexts(tomllib.loads(content.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        raise ContextError(f"{path} is not a TOML file") from None  # the reason might quote a key
    except ValueError as error:
        raise ContextError(f"{path}: {error}") from None


def _contexts(document: Mapping[str, Any]) -> Contexts:
    if unknown := document.keys() - {"current", "contexts"}:
        raise ValueError(f"there is no setting {min(unknown)[:80]!a}; accepted: current, contexts")
    current, tables = document.get("current"), document.get("contexts", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError("'contexts' holds one table for each context: [contexts.NAME]")
    by_name = {parse_context_name(name): _context(name, table) for name, table in tables.items()}
    if current is not None and current not in by_name:
        raise ValueError(f"'current' is {str(current)[:80]!a}, which is not among the contexts")
    return Contexts(by_name, current)


def _context(name: str, table: Mapping[str, Any]) -> Context:
    if unknown := table.keys() - _FIELDS:
        accepted = ", ".join(sorted(_FIELDS))
        raise ValueError(f"context {name} has an unknown field {min(unknown)[:80]!a}; accepted: {accepted}")
    if not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"the fields of context {name} are strings")
    return checked_context(**{"url": "", **table})


def checked_context(*, url: str, api_key: str = "", namespace: str = "") -> Context:
    """Make a context from texts. Raises ValueError, without showing the key, if one is not accepted."""
    return Context(
        url=parse_url(url),
        api_key=parse_api_key(api_key),
        namespace=parse_namespace(namespace) if namespace else "",
    )


@contextlib.contextmanager
def changing_contexts() -> Iterator["Change"]:
    """Let one process at a time read, change and write the configuration file.

    The file is written if the block sets `contexts`. Only the user can read it, from its first byte on.
    """
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = path.resolve()  # a link to a file elsewhere stays a link
    with path.with_name(f"{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        change = Change(before := read_contexts())
        yield change
        if change.contexts != before:
            with replacing(path, mode=0o600) as file:
                file.write(_written(change.contexts).encode())


@dataclass(slots=True)
class Change:
    """The contexts of the configuration file. Assign to `contexts` to have the file written."""

    contexts: Contexts


def _written(contexts: Contexts) -> str:
    """Return the text of the configuration file. All values are printable ASCII, so JSON strings are TOML
    strings too.
    """
    lines = ["# Written by `speaker-registry login` and `speaker-registry contexts`."]
    if contexts.current is not None:
        lines.append(f"current = {json.dumps(contexts.current)}")
    for name, context in sorted(contexts.by_name.items()):
        lines += ["", f"[contexts.{json.dumps(name)}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in context.options.items() if value]
    return "\n".join([*lines, ""])


def connection(url: str | None = None, context: str | None = None) -> dict[str, Any]:
    """Return the arguments for a client: address, API key and namespace.

    The first of these that is given wins: `url`, `context`, the environment variables
    `SPEAKER_REGISTRY_CONTEXT` and `SPEAKER_REGISTRY_URL`, and the current context of the file. A context that
    was named is used as it is. If the current context is used because nothing names another one, the
    environment's key and namespace are used instead of its own.

    Raises:
        ContextError: There is no such context, or the file cannot be used.
        OSError: The file cannot be read.
    """
    if url is not None and context is not None:
        raise ContextError("give either an address or a context, because a context has its own address")
    named = context or (os.environ.get(CONTEXT_VARIABLE) if url is None else None)
    if named:
        return read_contexts().get(named).options
    if url is not None or os.environ.get(URL_VARIABLE):
        return {} if url is None else {"url": url}
    contexts = read_contexts()
    if contexts.current is None:
        raise ContextError(_no_registry(contexts))
    environment = {
        "api_key": os.environ.get(API_KEY_VARIABLE),
        "namespace": os.environ.get(NAMESPACE_VARIABLE),
    }
    return contexts.get(contexts.current).options | {
        key: value for key, value in environment.items() if value
    }


def _no_registry(contexts: Contexts) -> str:
    if contexts.by_name:
        known = ", ".join(sorted(contexts.by_name))
        return f"no context is chosen: `speaker-registry contexts use NAME` chooses one of {known}"
    return f"no registry address: {_LOGIN} keeps one, --url gives one, or set {URL_VARIABLE}"
