"""Values that several settings have in common: files and secrets, lists of names, and addresses."""

import ipaddress
import re
import stat
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_settings import NoDecode


def _readable(path: Path) -> Path:
    """Return the path of a file that can be read, or raise ValueError.

    The check is made here because an error here names the variable; the code that opens the file cannot.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise ValueError("this is not a regular file")
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"this file cannot be read: {error.strerror}") from None
    return path


ReadableFile = Annotated[Path, AfterValidator(_readable)]


def secret_of(given: SecretStr | None, file: Path | None) -> str | None:
    """Return the secret that was given, or the one in the file, or None if there is neither."""
    if file:
        return file.read_text().strip()
    return given.get_secret_value() if given else None


def _names(text: object) -> object:
    return [name.strip() for name in text.split(",") if name.strip()] if isinstance(text, str) else text


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
"""Names in one variable, separated by commas."""


def is_loopback(host: str) -> bool:
    """Return whether the host names this machine and can be reached only from it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(endpoint: str) -> bool:
    """Return whether nothing but the endpoint can read what is sent to it: over https, or on this machine."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def without_credentials(text: str) -> str:
    """Return the text with the credentials of a URL in it replaced by an ellipsis."""
    return re.sub("//.*@", "//…@", text)
