"""The commands for registries that are kept by name: `login`, `logout` and `contexts list|use|remove`."""

import argparse
import getpass
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import speaker_registry
from speaker_registry.cli.command import Command, CommandError, Output, add_yes, argument, confirm
from speaker_registry.names import KEY_ID_PATTERN
from speaker_registry.terminal import printable, table

if TYPE_CHECKING:
    from speaker_registry.contexts import Context

_MAX_KEY_CHARACTERS = 8192
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_KEY = re.compile(rf"sreg_({KEY_ID_PATTERN})_")
_SHADOWING = (
    "SPEAKER_REGISTRY_CONTEXT",
    "SPEAKER_REGISTRY_URL",
    "SPEAKER_REGISTRY_API_KEY",
    "SPEAKER_REGISTRY_NAMESPACE",
)


def login(arguments: argparse.Namespace) -> Output:
    """Check an API key with its registry, and store both as a context. A key that the registry refuses is not
    stored.
    """
    from speaker_registry.contexts import changing_contexts, config_path  # noqa: PLC0415  loads httpx

    with _as_command_errors():
        name, context = _entered_context(arguments)
        client = speaker_registry.RegistryClient(**context.options, on_pause=arguments.on_pause)
    with client:
        namespace = client.quota().namespace
    with _as_command_errors(), changing_contexts() as change:
        change.contexts = change.contexts.with_current(name, context)
    accepts = "the key" if context.api_key else "requests without a key"
    text = (
        f"{context.url} accepts {accepts}, for the namespace {namespace}\n"
        f"the context {name} is kept in {printable(config_path())} and is the current one"
    )
    document = {"context": name, **_shown(context), "namespace": namespace}
    return Output(document, text, warnings=[*_unencrypted(context), *_environment_warnings()])


def _entered_context(arguments: argparse.Namespace) -> tuple[str, "Context"]:
    """Return the context that the arguments, the environment and the entered key describe, and its name."""
    from speaker_registry.contexts import checked_context, parse_context_name, read_contexts  # noqa: PLC0415  loads httpx

    known = read_contexts()
    url = arguments.url or os.environ.get("SPEAKER_REGISTRY_URL", "")
    name = arguments.name or arguments.context or (_name_for(url) if url else known.current)
    kept = known.by_name.get(name) if name else None
    address = arguments.url or (kept.url if kept else url)
    if name is None or not address:
        raise CommandError("login needs the registry's address: `speaker-registry login NAME --url URL`")
    namespace = arguments.namespace or (kept.namespace if kept and kept.url == address else "")
    parse_context_name(name)
    checked_context(url=address, namespace=namespace)  # refused before anybody enters a key
    return name, checked_context(url=address, api_key=_entered_key(address), namespace=namespace)


def _name_for(url: str) -> str:
    """Return a name for the registry at an address: its host and port."""
    host = urlsplit(url).netloc.rpartition("@")[2]
    return re.sub(r"[^A-Za-z0-9.-]+", "-", host).strip("-.")[:64] or "registry"


def _entered_key(url: str) -> str:
    """Read an API key from the terminal, which does not show it, or from standard input."""
    if sys.stdin.isatty():
        return getpass.getpass(f"API key for {printable(url)} (empty if it needs none): ", stream=sys.stderr)
    key = sys.stdin.read(_MAX_KEY_CHARACTERS + 1).strip()
    if len(key) > _MAX_KEY_CHARACTERS:
        raise CommandError(f"standard input has more than {_MAX_KEY_CHARACTERS} characters, so it is no key")
    return key


def _unencrypted(context: "Context") -> list[str]:
    address = urlsplit(context.url)
    if not context.api_key or address.scheme != "http" or address.hostname in _LOOPBACK:
        return []
    return [f"the key crosses the network to {context.url} unencrypted; an https address protects it"]


def _environment_warnings() -> list[str]:
    """Return a warning if the environment keeps the current context from being used as it is."""
    given = [name for name in _SHADOWING if os.environ.get(name)]
    if not given:
        return []
    return [
        f"the environment sets {', '.join(given)}, which takes precedence over the current context; "
        "--context NAME takes precedence over both"
    ]


def logout(arguments: argparse.Namespace) -> Output:
    """Remove the key of a context. The rest of it stays, so that `login NAME` can store a new key."""
    from speaker_registry.contexts import changing_contexts  # noqa: PLC0415  loads httpx

    with _as_command_errors(), changing_contexts() as change:
        name = arguments.name or arguments.context or change.contexts.current
        if name is None:
            raise CommandError("no context is chosen: `speaker-registry logout NAME` names one")
        still = _still_accepted(change.contexts.get(name))
        change.contexts = change.contexts.without_key(name)
    text = f"the key of {name} is no longer kept; `speaker-registry login {name}` keeps another one"
    return Output({"context": name, "key": None}, printable(text), warnings=still)


def _still_accepted(context: "Context") -> list[str]:
    """Return a warning that says how the key of a context ends, if it has one."""
    if not context.api_key:
        return []
    if not (found := _KEY.match(context.api_key)):
        return ["the registry still accepts the token until it expires"]
    return [
        f"the registry still accepts the key until `speaker-registry keys revoke {found[1]}` ends it or, if "
        "it is the bootstrap key, until the API is started with another one"
    ]


def list_contexts(_: argparse.Namespace) -> Output:
    from speaker_registry.contexts import read_contexts  # noqa: PLC0415  loads httpx

    with _as_command_errors():
        contexts = read_contexts()
    data = [
        {"context": name, "current": name == contexts.current, **_shown(context)}
        for name, context in sorted(contexts.by_name.items())
    ]
    rows = [
        ("*" if one["current"] else "", *(one[key] or "-" for key in ("context", "url", "namespace", "key")))
        for one in data
    ]
    head = ("CURRENT", "NAME", "URL", "NAMESPACE", "KEY")
    return Output({"object": "list", "data": data, "has_more": False}, table(head, rows))


def use_context(arguments: argparse.Namespace) -> Output:
    from speaker_registry.contexts import changing_contexts  # noqa: PLC0415  loads httpx

    with _as_command_errors(), changing_contexts() as change:
        change.contexts.get(arguments.name)
        change.contexts = change.contexts.with_current(arguments.name)
    text = f"{arguments.name} is the current context"
    return Output({"context": arguments.name, "current": True}, text, warnings=_environment_warnings())


def remove_context(arguments: argparse.Namespace) -> Output:
    from speaker_registry.contexts import changing_contexts, read_contexts  # noqa: PLC0415  loads httpx

    with _as_command_errors():
        read_contexts().get(arguments.name)
    if not arguments.yes:
        confirm("remove", f"Remove the context {arguments.name} with its key?")
    with _as_command_errors(), changing_contexts() as change:
        change.contexts = change.contexts.without(arguments.name)
    return Output({"context": arguments.name, "removed": True}, f"removed {arguments.name}")


@contextmanager
def _as_command_errors() -> Iterator[None]:
    """Turn the reason why a context or the file cannot be used into an error of the command."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from None


def _shown(context: "Context") -> dict[str, str | None]:
    return {"url": context.url, "namespace": context.namespace or None, "key": _key_id(context) or None}


def _key_id(context: "Context") -> str:
    """Return the part of a key that may be shown: its id. A token has none."""
    found = _KEY.match(context.api_key)
    return found[1] if found else "token" if context.api_key else ""


def _add_login(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", help="name to keep it by (default: its host)")
    command.add_argument("--namespace", metavar="NS", help="namespace to use, for a key that may use any")


_add_logout = argument("name", metavar="NAME", nargs="?", help="context (default: the current one)")
_add_context = argument("name", metavar="NAME", help="context, see contexts list")
_LOGIN = (
    "Check an API key with its registry, and keep both by a name. The key is asked for, or read from "
    "standard input."
)
_CONTEXT_COMMANDS = (
    Command("list", list_contexts, "List the kept registries, without their keys.", local=True),
    Command("use", use_context, "Make a context the current one.", [_add_context], local=True),
    Command("remove", remove_context, "Remove a context with its key.", [_add_context, add_yes], local=True),
)

COMMANDS = (
    Command("login", login, _LOGIN, [_add_login], local=True),
    Command("logout", logout, "Forget the API key of a context.", [_add_logout], local=True),
    Command(
        "contexts",
        None,
        "List, choose and remove the registries that are kept.",
        commands=_CONTEXT_COMMANDS,
    ),
)
