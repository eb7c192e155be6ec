"""What an API key is: how it is written, what is stored of it, when it is good. Pure: no clock, no bucket.

    sreg_{id}_{secret}_{checksum}     8, 43 and 6 characters

The id is no secret: it names the key in lists and logs. The secret has 256 random bits, of which the SHA-256
is stored: nobody can guess that much, so a slow hash would protect nothing. The checksum (CRC-32) tells a
typing mistake without a look-up; and scanners know by the prefix what they have found.
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

from services.shared.model.domain import Record
from speaker_registry.scopes import SCOPES

ALL_SCOPES = frozenset(SCOPES)
ANY_NAMESPACE = "*"
"""Of a key that is for all of them: each request says for which."""

ID_LETTERS = 8
"""So many an id has."""
_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_ALPHABET = string.digits + string.ascii_lowercase
_TOKEN = re.compile(r"sreg_([0-9a-z]{8})_([0-9A-Za-z]{43})_([0-9A-Za-z]{6})")
_NOBODYS_SHA256 = hashlib.sha256(b"nobody's").hexdigest()


class Token(NamedTuple):
    """A key as its holder has it."""

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
    """One that nobody has."""
    return Token(_random(_ID_ALPHABET, ID_LETTERS), _random(_LETTERS, 43))


def parse_token(text: str) -> Token | None:
    """None if it cannot be a key: of another form, or mistyped."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    token = Token(match[1], match[2])
    return token if str(token) == text else None


def _random(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))


def _checksum(text: str) -> str:
    number, digits = zlib.crc32(text.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, len(_LETTERS))
        digits = _LETTERS[digit] + digits
    return digits


class ApiKeyRecord(Record):
    """What is stored of a key: the JSON of its first fact. Never edited."""

    id: str
    secret_sha256: str = Field(repr=False)
    name: str
    namespace: str
    """Or `ANY_NAMESPACE`."""
    scopes: tuple[str, ...]
    created_at: int
    created_by: str
    expires_at: int | None = None
    requests_per_minute: int | None = None
    uploads_per_minute: int | None = None
    first: str | None = None
    """Of the keys that it and others followed, one after the other. None: it follows none."""


AT_ONCE = 0
"""When a key ends that is revoked: no clock, however wrong, says that this is still to come."""


class End(NamedTuple):
    """Somebody ended a key."""

    at: int
    """From when on, in Unix seconds, or `AT_ONCE`."""
    said_at: int
    """When it was said."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key and its ends."""

    record: ApiKeyRecord
    ends: tuple[End, ...] = ()

    @property
    def ends_at(self) -> int | None:
        """Since when, or from when on, it is not accepted."""
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
    """Whether the token is this key's. Takes as long where there is no such key."""
    expected = key.record.secret_sha256 if key is not None else _NOBODYS_SHA256
    return hmac.compare_digest(expected, token.sha256) and key is not None
