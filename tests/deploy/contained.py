"""Becomes a module as our images run it, as far as that can be had without a container engine: the root file
system read-only, /tmp empty and its own, uid 10001, no capabilities, no new privileges, few processes to see.

`CONTAINED_FOLDER` is what it may write to besides. An engine's own seccomp profile is not applied.
"""

import os
import sys
from pathlib import Path

UID = "10001"
ROOT = Path(__file__).parents[2]


def become(module: str) -> None:
    """Replaces this process by bubblewrap, which runs the module."""
    folder = os.environ["CONTAINED_FOLDER"]
    guards = ["--unshare-user", "--uid", UID, "--gid", UID, "--cap-drop", "ALL"]
    guards += ["--unshare-pid", "--unshare-ipc", "--die-with-parent"]
    guards += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for needed in (sys.prefix, str(ROOT)):  # a checkout may lie in /tmp
        guards += ["--ro-bind", needed, needed]
    guards += ["--bind", folder, folder, "--setenv", "HOME", "/tmp"]
    os.execvp("bwrap", ["bwrap", *guards, "--", sys.executable, "-m", module])
