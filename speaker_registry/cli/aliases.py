"""The commands for aliases: `alias set|rm|list`, and `rollback`."""

import argparse
import shlex
from functools import partial
from typing import TYPE_CHECKING

from speaker_registry.cli.command import (
    PROGRAM,
    Command,
    Output,
    add_limit,
    add_name,
    argument,
    count,
    first_of,
    list_document,
)
from speaker_registry.names import DEFAULT, MAX_VERSION
from speaker_registry.terminal import printable, table

if TYPE_CHECKING:
    from speaker_registry import Alias, RegistryClient


def set_alias(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    return _moved(arguments.name, client.move_alias(arguments.name, arguments.alias, arguments.version))


def rollback(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    return _moved(arguments.name, client.rollback(arguments.name, arguments.to))


def _moved(name: str, moved: "Alias") -> Output:
    """Say where an alias points, where it pointed before, and how the move is undone."""
    reference, before = f"{moved.voice}@{moved.alias}", moved.previous_version
    back = f"`{_command('rm', name, moved.alias)}`"
    if before == moved.version:
        lines = [f"{reference} is version {moved.version}, as it was before"]
    elif before is None:
        lines = [
            f"{reference} is version {moved.version}; there was no such alias before",
            f"{back} removes it",
        ]
    else:
        lines = [
            f"{reference} is version {moved.version}; it was version {before} before",
            f"`{_command('set', name, moved.alias, str(before))}` undoes that",
        ]
    if moved.alias == DEFAULT:
        lines.append(f"{back} lets it move to new versions by itself again")
    return Output(moved.model_dump(mode="json"), "\n".join(map(printable, lines)))


def _command(*words: str) -> str:
    return shlex.join([PROGRAM, "alias", *words])


def remove_alias(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    name, alias = arguments.name, arguments.alias
    before = client.alias(name, alias)
    client.remove_alias(name, alias, if_match=before.etag)
    undo = f"`{_command('set', name, alias, str(before.version))}` undoes that"
    done = f"{name}@{alias} moves by itself again" if alias == DEFAULT else f"removed {name}@{alias}"
    document = {"voice": before.voice, "alias": alias, "removed": alias != DEFAULT, "was": before.version}
    return Output(document, printable(f"{done}; it was version {before.version}") + f"\n{printable(undo)}")


def list_aliases(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    found, more = first_of(lambda limit: client.aliases(arguments.name, limit=limit), arguments)
    rows = [(one.alias, one.version, "by hand" if one.by_hand else "by itself") for one in found]
    document = list_document(found, more=bool(more))
    return Output(document, table(("ALIAS", "VERSION", "MOVED"), rows), warnings=more)


_number = partial(count, most=MAX_VERSION)
_add_alias = argument("alias", metavar="ALIAS", help="default, or a name of your own, such as prod")
_add_version = argument("version", metavar="VERSION", type=_number, help="number of the version")
_add_target = argument(
    "--to",
    metavar="N",
    type=_number,
    help="number of the version (default: the next lower one than that of `default`)",
)
_ALIAS_COMMANDS = (
    Command(
        "set", set_alias, "Point an alias to a version of a voice.", [add_name, _add_alias, _add_version]
    ),
    Command("rm", remove_alias, "Remove an alias; `default` moves by itself again.", [add_name, _add_alias]),
    Command("list", list_aliases, "List the aliases of a voice.", [add_name, add_limit]),
)


COMMANDS = (
    Command("alias", None, "Set, remove and list the aliases of a voice.", commands=_ALIAS_COMMANDS),
    Command("rollback", rollback, "Move `default` of a voice to an older version.", [add_name, _add_target]),
)
