"""The first API key of an embedded registry that requires keys. It is made once and kept beside the data."""

from contextlib import suppress
from pathlib import Path

from services.registry_api.keys.key_file import write_new_key
from services.shared.configuration.access import AccessSettings
from services.shared.configuration.api import ApiSettings

FILE = "bootstrap-key"


def bootstrap_key_file(host: str, data: Path) -> Path | None:
    """Return the file with a key that has all permissions, and make it if necessary.

    Returns:
        None if no key is required, or if the environment provides one.

    Raises:
        ValueError: Keys are required, but the environment turns them off.
        OSError: The file cannot be written.
    """
    access = AccessSettings()
    if access.why_required_at(ApiSettings(host=host)) is None or access.bootstrap is not None:
        return None
    path = data / FILE
    if not path.exists():
        with suppress(FileExistsError):  # another process has made the file in the meantime
            write_new_key(path)
    return path
