"""Completion of the command line in bash, zsh and fish, by argcomplete.

The script that a shell reads calls the command line itself with the words typed so far. Knows no registry and
no command.
"""

import argparse
import os
from typing import Any, cast

SHELLS = ("bash", "zsh", "fish")
_FILES = {"CLIP", "FILE"}
"""What arguments that are files are called in the usage."""


def is_asked() -> bool:
    """Whether a shell has called us to complete a line."""
    return "_ARGCOMPLETE" in os.environ


def complete(parser: argparse.ArgumentParser) -> None:
    """Tell the shell what could follow, and end the process."""
    import argcomplete  # noqa: PLC0415  only for shells that complete
    from argcomplete.completers import FilesCompleter  # noqa: PLC0415

    files = FilesCompleter()

    def completer(prefix: str, action: argparse.Action, **_: object) -> list[str]:
        return list(files(prefix)) if action.metavar in _FILES else []

    argcomplete.autocomplete(parser, default_completer=cast("Any", completer))


def script(program: str, shell: str) -> str:
    """What a shell has to read to complete this program's lines."""
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415  only for whoever sets it up

    return str(shellcode([program], use_defaults=False, shell=shell))  # files only where one is meant
