"""The first API key of a registry on one machine, where it needs keys: made once, kept beside the data."""

import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from services.shared.api_keys import new_token
from services.shared.durable_folder import sync_folder
from services.shared.settings import AccessSettings, ApiSettings

FILE = "bootstrap-key"


def bootstrap_key_file(host: str, data: Path) -> Path | None:
    """The file that holds a key with all rights, made if need be; None where no key is needed, or the
    environment brings one.

    Raises:
        ValueError: keys are needed and the environment says that they are not. OSError.
    """
    access = AccessSettings()
    if not access.required_at(ApiSettings(host=host)) or access.bootstrap is not None:
        return None
    path = data / FILE
    if not path.exists():
        _write_new(path, f"{new_token()}\n")
    return path


def _write_new(path: Path, text: str) -> None:
    """Whole or not at all, whenever we are stopped; for its owner only. What another wrote before stays."""
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-") as file:  # 0600
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
    sync_folder(path.parent)
