"""The first API key of a registry on one machine, where it needs keys: made once, kept beside the data."""

import os
from pathlib import Path

from services.shared.api_keys import new_token
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
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{new_token()}\n")
    return path
