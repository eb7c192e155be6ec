"""Completion of the command line in bash, zsh and fish, with argcomplete.

The script that a shell loads calls the command line itself with the words typed so far.
"""

import argparse
import os
from typing import Any, cast

from speaker_registry.cli.command import PROGRAM, Command, Output, argument

SHELLS = ("bash", "zsh", "fish")
_FILES = {"CLIP", "DIR", "FILE", "PATH"}
"""Names of arguments in the usage that stand for files."""


def is_asked() -> bool:
    """Return True if a shell has called this program to complete a line."""
    return "_ARGCOMPLETE" in os.environ


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the possible completions for the shell, and end the process."""
    import argcomplete  # noqa: PLC0415  only needed for completion
    from argcomplete.completers import FilesCompleter  # noqa: PLC0415

    files = FilesCompleter()

    def completer(prefix: str, action: argparse.Action, **_: object) -> list[str]:
        return list(files(prefix)) if action.metavar in _FILES else []

    argcomplete.autocomplete(parser, default_completer=cast("Any", completer))


def print_script(arguments: argparse.Namespace) -> Output:
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415  only needed to set completion up

    # Without defaults, files are completed only for arguments that are files.
    script = str(shellcode([PROGRAM], use_defaults=False, shell=arguments.shell))
    return Output({"shell": arguments.shell, "script": script}, script.rstrip("\n"))


_add_shell = argument("shell", choices=SHELLS)
COMMAND = Command(
    "completion",
    print_script,
    "Print the completion script for a shell.",
    [_add_shell],
    local=True,
    takes_registry=False,
)
