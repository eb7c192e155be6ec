"""The first API key of a registry on one machine, where it needs keys: made once, kept beside the data."""

from contextlib import suppress
from pathlib import Path

from services.registry_api.keys.key_file import write_new_key
from services.shared.configuration.settings import AccessSettings, ApiSettings

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
        with suppress(FileExistsError):  # another process was first
            write_new_key(path)
    return path
