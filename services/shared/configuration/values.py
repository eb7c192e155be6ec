"""Values that several settings have in common: numbers and their upper bounds, files and secrets, lists of
names, and addresses.
"""

import ipaddress
import re
import stat
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

LONGEST_DURATION_SECONDS = 24 * 3600
"""The longest time that a process may be set to wait or to work. Timers overflow at much longer ones."""

DurationSeconds = Annotated[float, Field(le=LONGEST_DURATION_SECONDS)]
"""A length of time, at most a day."""
WholeDurationSeconds = Annotated[int, Field(le=LONGEST_DURATION_SECONDS)]
"""A length of time in whole seconds, at most a day."""
PeriodSeconds = Annotated[float, Field(le=10 * 365 * 24 * 3600)]
"""Time between two events or up to one, at most ten years. Dates overflow at much longer ones."""
Count = Annotated[int, Field(le=10**9)]
"""A number of things, or of calls in a minute. Redis and Lua compute inexactly with much larger ones."""
Bytes = Annotated[int, Field(le=2**50)]
"""A size of at most 1 PiB. The limits of the kernel overflow at much larger ones."""


def _utf8(text: str) -> str:
    """Return the text, or raise ValueError if it has bytes that are no UTF-8, which Python keeps as
    surrogates. They could neither be sent nor shown.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("this is not UTF-8 text") from None
    return text


Text = Annotated[str, AfterValidator(_utf8)]


def _utf8_path(path: Path) -> Path:
    _utf8(str(path))
    return path


TextPath = Annotated[Path, AfterValidator(_utf8_path)]
"""A path that can be written as a URL."""


def _utf8_secret(secret: SecretStr) -> SecretStr:
    _utf8(secret.get_secret_value())
    return secret


Secret = Annotated[SecretStr, AfterValidator(_utf8_secret)]


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


def _holds_secret(path: Path) -> Path:
    """Return the path of a file of text, or raise ValueError. A blank file is refused too, because it would
    count as no secret.
    """
    try:
        if not path.read_text("utf-8").strip():
            raise ValueError("this file is empty")
    except OSError as error:
        raise ValueError(f"this file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("this file holds no UTF-8 text") from None
    return path


SecretFile = Annotated[ReadableFile, AfterValidator(_holds_secret)]


def secret_of(given: SecretStr | None, file: Path | None) -> str | None:
    """Return the secret that was given, or the one in the file, or None if there is neither."""
    if file:
        return file.read_text("utf-8").strip()
    return given.get_secret_value() if given else None


def refuse_both(variable: str, given: SecretStr | None, file: Path | None) -> None:
    """Raise ValueError if both the variable of a secret and that of its file are set."""
    if given and file:
        raise ValueError(f"{variable} and {variable}_FILE are set: give one of them")


def _names(text: object) -> object:
    return [name.strip() for name in text.split(",") if name.strip()] if isinstance(text, str) else text


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
"""Names in one variable, separated by commas."""


def possible_host(host: str) -> str:
    """Return the host, or raise ValueError if no machine can have this name. Looking it up would raise
    UnicodeError, which no library expects.
    """
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("this is neither an address nor the name of a machine") from None
    return host


Host = Annotated[Text, AfterValidator(possible_host)]


def _with_host(url: str) -> str:
    """Return the URL, or raise ValueError if no host and port can be read from it. The reason is left out,
    because it may quote a part of a password.
    """
    try:
        parts = urlsplit(_utf8(url))
        possible = bool(possible_host(parts.hostname or "")) and parts.port != 0
    except ValueError:
        possible = False
    if not possible:
        raise ValueError("this is not the URL of a server, such as https://example.org:9000")
    return url


WITH_HOST = AfterValidator(_with_host)


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
    """Return a text with one URL with ellipses for what may be secret: user, password and the values of the
    query.

    The URL may be invalid or lack its scheme, so everything before the last "@" counts as credentials. Of a
    text with two URLs, what is between them could be lost.
    """
    without_user = re.sub("(?s)^([^/]*//)?.*@", r"\1…@", text)
    return re.sub(r"([?&][^=&]*=)[^&\s]*", r"\1…", without_user)
