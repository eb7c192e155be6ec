"""Writes a new API key to a file of its own, which only its owner can read."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from services.registry_api.keys.api_keys import new_token
from services.shared.bucket.durable_folder import sync_folder


def write_new_key(path: Path) -> None:
    """Make an API key and write it to a new file with mode 0600.

    The file appears whole or not at all, whenever the process is stopped, and never holds the key under
    another mode.

    Raises:
        FileExistsError: the path exists; the file there is left as it is.
        OSError: the file cannot be written.
    """
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-") as file:  # its mode is 0600
        file.write(f"{new_token()}\n")
        file.flush()
        os.fsync(file.fileno())
        os.link(file.name, path)
    sync_folder(path.parent)
