"""Says which setting to change when a process cannot listen at the host and the port of its settings."""

import errno
import os
import socket

_FAULTS_OF_PORTS = (errno.EADDRINUSE, errno.EACCES)


class CannotListen(Exception):
    """A process cannot listen at its host and port. The message names the variable to change."""


def why_not_listening(error: OSError, host: str, port: int, prefix: str) -> str:
    """Return why a process cannot listen, and which of the variables `HOST` and `PORT` with this prefix to
    change.
    """
    if isinstance(error, socket.gaierror):
        return f"{prefix}HOST is {host!r:.100}, which cannot be resolved: {error.strerror}."
    number = error.errno or 0
    advice = "Is a registry running there already? " if number == errno.EADDRINUSE else ""
    if number in _FAULTS_OF_PORTS:
        advice += f"Set {prefix}PORT to another port."
    else:
        advice += f"Set {prefix}HOST to an address of this machine."
    return f"Port {port} of {host} cannot be used ({os.strerror(number)}). {advice}"
