"""API keys: their text, their stored record and their validity. This module knows no clock and no bucket.

    sreg_{id}_{secret}_{checksum}     8, 43 and 6 characters

The id is not secret: it names the key in lists and logs. The secret has 256 random bits, and its SHA-256 is
stored. That many bits cannot be guessed, so a slow hash would protect nothing. The checksum (CRC-32) reveals
a typing mistake without a look-up, and secret scanners recognise a key by its prefix.
"""

import hashlib
import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field

from services.shared.model.records import Record
from speaker_registry.names import KEY_ID_LETTERS, KEY_ID_PATTERN
from speaker_registry.scopes import SCOPES

ALL_SCOPES = frozenset(SCOPES)
ANY_NAMESPACE = "*"
"""Namespace of a key that is valid for all of them. Each request with such a key names its namespace."""

_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_ALPHABET = string.digits + string.ascii_lowercase
_TOKEN = re.compile(rf"sreg_({KEY_ID_PATTERN})_([0-9A-Za-z]{{43}})_([0-9A-Za-z]{{6}})")
_NOBODYS_SHA256 = hashlib.sha256(b"nobody's").hexdigest()


class Token(NamedTuple):
    """An API key in the form that its holder has, with its secret."""

    id: str
    secret: str

    def __str__(self) -> str:
        text = f"sreg_{self.id}_{self.secret}"
        return f"{text}_{_checksum(text)}"

    def __repr__(self) -> str:
        return f"<Token {self.id}>"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()


def new_token() -> Token:
    """Return a new random token."""
    return Token(_random(_ID_ALPHABET, KEY_ID_LETTERS), _random(_LETTERS, 43))


def parse_token(text: str) -> Token | None:
    """Return the token, or None if the text cannot be a key because it is mistyped or has another form."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    token = Token(match[1], match[2])
    return token if str(token) == text else None


def is_key_id(text: str) -> bool:
    """Return whether a text could be the id of a key, and so may be used in a path."""
    return re.fullmatch(KEY_ID_PATTERN, text) is not None


def _random(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))


def _checksum(text: str) -> str:
    number, digits = zlib.crc32(text.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, len(_LETTERS))
        digits = _LETTERS[digit] + digits
    return digits


class ApiKeyRecord(Record):
    """The permissions and limits that a key was made with. They are never edited."""

    id: str
    secret_sha256: str = Field(repr=False)
    name: str
    namespace: str
    """Namespace that the key is for, or `ANY_NAMESPACE`."""
    scopes: tuple[str, ...]
    created_at: int
    created_by: str
    expires_at: int | None = None
    requests_per_minute: int | None = None
    uploads_per_minute: int | None = None
    first: str | None = None
    """Id of the first key in the series of rotations that led to this one, or None if this key replaced no
    other.
    """


AT_ONCE = 0
"""Time at which a revoked key ends. It is in the past for every clock, however wrong the clock is."""


class End(NamedTuple):
    """One end of a key."""

    at: int
    """Time from which the key is no longer accepted, in Unix seconds, or `AT_ONCE`."""
    said_at: int
    """Time at which the end was stored."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, with the times at which it ends."""

    record: ApiKeyRecord
    ends: tuple[End, ...] = ()

    @property
    def position(self) -> tuple[int, str]:
        """Return the key's position in lists of keys, which are sorted by it: oldest first."""
        return self.record.created_at, self.record.id

    @property
    def ends_at(self) -> int | None:
        """Return the time from which the key is not accepted, past or future, or None if it has no end."""
        given = [max(end) for end in self.ends]
        expiry = [] if self.record.expires_at is None else [self.record.expires_at]
        return min([*given, *expiry], default=None)

    def state(self, now: float) -> Literal["active", "expired", "revoked"]:
        if any(end.at <= now for end in self.ends):
            return "revoked"
        if self.record.expires_at is not None and self.record.expires_at <= now:
            return "expired"
        return "active"


def is_secret_of(key: ApiKey | None, token: Token) -> bool:
    """Return whether the token is that of this key. The check takes equally long if there is no such key."""
    expected = key.record.secret_sha256 if key is not None else _NOBODYS_SHA256
    return hmac.compare_digest(expected, token.sha256) and key is not None
